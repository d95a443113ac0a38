<?php

declare(strict_types=1);

namespace Dlock\Tests;

use PHPUnit\Framework\Assert;

/** What a case has made so far. Each step is a method; each client is a process. */
final class Runner
{
    private readonly Server $server;
    /** @var array<string, string> */
    private array $paths = [];
    /** @var array<string, Worker> */
    private array $clients = [];
    /** @var array<string, list<array{Worker, int}>> */
    private array $holds = [];
    /** @var array<string, array{Worker, int}> */
    private array $starts = [];
    /** @var array<string, int> */
    private array $marks = [];
    /** @var list<string> */
    private array $frozen = [];
    /** @var list<string> */
    private array $users = [];
    /** @var array<string, string> */
    private array $spread = [];
    /** @var list<array{string, string}> */
    private array $settings = [];

    public function __construct(private readonly string $place, private readonly string $library)
    {
        $this->server = new Server($place);
    }

    /** @param list<array<string, mixed>> $steps */
    public function run(array $steps): void
    {
        foreach ($steps as $step) {
            $do = $step['do'];
            unset($step['do']);
            if (isset($step['as'])) {
                $step['name'] = $step['as'];
                unset($step['as']);
            }
            $this->{'do_' . $do}(...$step);
        }
    }

    public function finish(): void
    {
        foreach ($this->frozen as $address) {
            Stage::control("thaw $address");
        }
        $undone = null;
        foreach (array_reverse($this->settings) as [$name, $value]) {
            try {
                $this->server->ask('CONFIG', 'SET', $name, $value);
            } catch (\Throwable $undone) {
                // The other settings must also be undone.
            }
        }
        foreach ($this->paths as $path) {
            Stage::control("close $path");
        }
        $this->clients = $this->starts = $this->holds = [];
        foreach ($this->users as $user) {
            $this->server->ask('ACL', 'DELUSER', $user);
        }
        if ($undone !== null) {
            throw $undone;
        }
    }

    private function named(string $key): string
    {
        return $this->spread[$key] ?? "{$this->server->key}:$key";
    }

    // What is done to the servers and on the way to them.

    private function do_path(string $name, string $to = 'single'): void
    {
        $target = match ($to) {
            'primary' => $this->server->addressOf($this->server->key),
            'replica' => $this->replica(),
            default => Stage::addresses('DLOCK_' . strtoupper($to))[0],
        };
        $this->paths[$name] = Stage::control("path $target");
    }

    private function do_close(string $path): void
    {
        Stage::control("close {$this->paths[$path]}");
    }

    private function do_silence(string $path): void
    {
        Stage::control("silence {$this->paths[$path]}");
    }

    private function do_strand(string $path): void
    {
        Stage::control("strand {$this->paths[$path]}");
    }

    private function do_sound(string $path): void
    {
        Stage::control("sound {$this->paths[$path]}");
    }

    private function do_cut(string $path): void
    {
        Stage::control("cut {$this->paths[$path]}");
    }

    private function do_delay(string $path, int $ms): void
    {
        Stage::control("delay {$this->paths[$path]} $ms");
    }

    private function do_freeze(string $key = 'lock', bool $replica = false): void
    {
        $this->frozen[] = $address = $replica ? $this->replica() : $this->server->addressOf($this->named($key));
        Stage::control("freeze $address");
    }

    /** The other one of the pair. */
    private function replica(): string
    {
        return array_values(array_diff(Stage::addresses('DLOCK_PAIR'), [$this->server->addressOf($this->server->key)]))[0];
    }

    private function do_settings(int|string ...$settings): void
    {
        foreach ($settings as $name => $value) {
            $this->settings[] = [(string) $name, $this->server->ask('CONFIG', 'GET', (string) $name)[1]];
            $this->server->ask('CONFIG', 'SET', (string) $name, (string) $value);
        }
    }

    private function do_thaw(): void
    {
        Stage::control('thaw ' . array_pop($this->frozen));
    }

    private function do_commands(string $path, ?int $at_most = null): void
    {
        $seen = (int) Stage::control("commands {$this->paths[$path]}");
        if ($at_most !== null) {
            Assert::assertLessThanOrEqual($at_most, $seen - $this->marks['commands']);
        }
        $this->marks['commands'] = $seen;
    }

    private function do_fault(string $what, string $key = 'lock'): void
    {
        Stage::control($what === 'switch' ? $what : "$what {$this->named($key)}");
    }

    /**
     * Some stand for something of this case.
     *
     * @param list<string> $words
     *
     * @return list<string>
     */
    private function words(array $words): array
    {
        return array_map(fn (string $word): string => match ($word) {
            'KEY' => $this->named('lock'),
            'DATA' => $this->named('data'),
            'USER' => end($this->users),
            'OWNER' => $this->server->queue($this->named('lock'))[0], // of the first in the queue
            default => $word,
        }, $words);
    }

    /** @param list<string> $words */
    private function do_ask(array $words, ?string $replies = null): void
    {
        $reply = $this->server->ask(...$this->words($words));
        $replies === null || Assert::assertSame($replies, $reply);
    }

    private function do_other(string $key = 'lock', bool $shared = false): void
    {
        $this->server->hold('other', $this->named($key), ...($shared ? ['SHARED'] : []));
    }

    private function do_hand_over(string $key = 'lock'): void
    {
        $this->server->handOver('other', $this->named($key));
    }

    private function do_user(string $rule, mixed ...$how): void
    {
        $name = trim($this->server->key, '{}') . count($this->users);
        $this->server->ask('ACL', 'SETUSER', $name, 'on', '>word', '~*', '&*', '+@all', $rule);
        $this->users[] = $name;
        $this->do_client(...['user' => $name, 'password' => 'word', ...$how]);
    }

    // What the server shows.

    private function do_queued(int $count, string $key = 'lock', bool $absent = false): void
    {
        $this->server->awaitQueued($count, $this->named($key), $absent);
    }

    private function do_free(string $key = 'lock'): void
    {
        $this->server->awaitGone($this->named($key));
    }

    private function do_outlasts(int $ms, string $key = 'lock'): void
    {
        Stage::until(function () use ($ms, $key) {
            $holders = $this->server->info($this->named($key))['holders'];
            Assert::assertNotEmpty($holders, "$key is not held any more");

            return $holders[0]['held-ms'] > $ms;
        }, "$key is held for $ms ms");
    }

    /** The server renews it for a connection. */
    private function do_renewed(string $key = 'lock'): void
    {
        Stage::until(function () use ($key) {
            $holders = $this->server->info($this->named($key))['holders'];

            return $holders !== [] && $holders[0]['auto'] === 1 && $holders[0]['client'] !== 0;
        }, "$key is renewed");
    }

    private function do_connections(?string $name = null, ?string $same = null): void
    {
        $count = fn (): int => substr_count($this->server->ask('CLIENT', 'LIST'), 'cmd=dlock');
        if ($name !== null) {
            $this->marks[$name] = $count();
        } else { // those of the tests that run at the same time come and go
            Stage::until(fn (): bool => $count() <= $this->marks[$same], 'there are no more connections than before');
        }
    }

    // What the client does.

    private function do_client(
        string $name = 'client',
        ?string $path = null,
        float $lease = 10.0,
        float $auto = 60.0,
        float $claim = 2.0,
        ?string $user = null,
        ?string $password = null,
    ): void {
        $this->clients[$name] = new Worker(['queueGrace' => $claim] + $this->how($path, $lease, $auto, $user, $password));
    }

    /** @return array<string, mixed> */
    private function how(?string $path, float $lease, float $auto, ?string $user, ?string $password): array
    {
        return [
            'place' => $path !== null ? 'single' : $this->place,
            'library' => $this->library,
            'lease' => $lease,
            'hangTimeout' => $auto,
            ...($path !== null ? ['address' => $this->paths[$path]] : []),
            ...($user !== null ? ['auth' => [$user, $password]] : []),
        ];
    }

    /** @param array<string, mixed> $answer */
    private function judge(
        Worker $worker,
        array $answer,
        string $gives,
        string $name = 'hold',
        string $text = '',
        ?bool $cause = null,
        ?float $within = null,
    ): void {
        Assert::assertSame($gives, $answer['got'], $answer['text'] ?? '');
        if ($gives === 'hold') {
            $this->holds[$name] = [[$worker, $answer['id']]];
        }
        Assert::assertStringContainsString($text, $answer['text'] ?? '');
        if ($cause) {
            Assert::assertTrue($answer['cause']);
        }
        if ($within !== null) {
            Assert::assertLessThan($within + Stage::late(), $answer['seconds']);
        }
    }

    private function do_lock(
        string $gives,
        string $client = 'client',
        string $key = 'lock',
        int|float|null $timeout = -1,
        bool $slots = false,
        ?string $owner = null,
        ?string $actor = null,
        ?int $limit = null,
        ?int $permits = null,
        bool $shared = false,
        bool $ephemeral = false,
        int|float|null $lease = null,
        int|float|null $max_hold = null,
        bool $at_once = false,
        mixed ...$how,
    ): void {
        if ($slots) { // a key of another node for each
            $taken = array_map($this->server->addressOf(...), $this->spread);
            do {
                $one = '{' . bin2hex(random_bytes(6)) . '}lock';
            } while (in_array($this->server->addressOf($one), $taken, true));
            $this->spread[$key] = $one;
        }
        $worker = $this->clients[$client];
        $timeout = $timeout === -1 ? Stage::patience() : $timeout;
        $options = compact('limit', 'permits', 'shared', 'ephemeral', 'lease');
        $options += ['actor' => $owner ?? $actor, 'maxHold' => $max_hold];
        $work = fn (): array => $worker->lock($this->named($key), $timeout, ...$options);
        for ($i = 0; $at_once && ($took ?? 1.0) >= 0.25; ++$i) {
            Assert::assertLessThan(20, $i, 'a busy machine is late by itself: one of twenty is enough');
            $took = $work()['seconds'];
        }
        $this->judge($worker, $work(), $gives, ...$how);
    }

    private function do_start(
        string $name,
        string $client = 'client',
        string $key = 'lock',
        int|float|null $timeout = -1,
        mixed ...$options,
    ): void {
        $timeout = $timeout === -1 ? Stage::patience() : $timeout;
        $worker = $this->clients[$client];
        $options += ['actor' => $options['owner'] ?? null];
        unset($options['owner']);
        $this->starts[$name] = [$worker, $worker->start('lock', ...['key' => $this->named($key), 'timeout' => $timeout, ...$options])];
    }

    private function do_joined(string $start, string $gives, mixed ...$how): void
    {
        [$worker, $number] = $this->starts[$start];
        $this->judge($worker, $worker->answer($number), $gives, ...$how);
    }

    private function do_release(string $hold = 'hold', ?string $gives = null, string $text = '', ?float $after = null): void
    {
        foreach ($this->holds[$hold] as [$worker, $id]) {
            $this->judge($worker, $worker->do('release', id: $id, after: $after), $gives ?? 'none', text: $text);
        }
    }

    /** The work releases its lock. To do so again is an error, and to leave the block is none. */
    private function do_block(string $key = 'lock', string $client = 'client'): void
    {
        $answer = $this->clients[$client]->do('block', key: $this->named($key));
        Assert::assertSame(['none', 'not held'], [$answer['got'], $answer['again']], $answer['text'] ?? '');
    }

    /** In a child the parent's hold is lost, and cannot be released; the child can take locks of its own. */
    private function do_fork(string $hold, string $key): void
    {
        foreach ($this->holds[$hold] as [$worker, $id]) {
            Assert::assertSame([true, 'not held', 'none'], $worker->do('fork', id: $id, key: $this->named($key))['seen']);
        }
    }

    /** Work that returns before it is done is refused, when it is given or when it has returned. */
    private function do_early(string $client = 'client'): void
    {
        foreach (['generator', 'gives a generator', 'promise'] as $work) {
            $answer = $this->clients[$client]->do('early', key: $this->named('lock'), work: $work);
            Assert::assertSame('bad', $answer['got'], $work);
            Assert::assertStringContainsString('work must not', $answer['text']);
        }
    }

    /** @param list<string> $words */
    private function do_guard(string $hold, array $words, ?string $gives = null): void
    {
        foreach ($this->holds[$hold] as [$worker, $id]) {
            $this->judge($worker, $worker->do('guard', id: $id, words: $this->words($words)), $gives ?? 'none');
        }
    }

    private function do_holds(int $count, string $name, string $client = 'client'): void
    {
        $worker = $this->clients[$client];
        $this->holds[$name] = [];
        for ($i = 0; $i < $count; ++$i) {
            $this->holds[$name][] = [$worker, $worker->lock($this->named((string) $i))['id']];
        }
    }

    private function do_lost(string $hold, float $within, string $text = ''): void
    {
        foreach ($this->holds[$hold] as [$worker, $id]) {
            $worker->awaitLost($id, $within + Stage::late());
            $told = array_filter($worker->events, static fn (array $one) => $one['event'] === 'lost' && $one['id'] === $id);
            Assert::assertStringContainsString($text, end($told)['text']);
        }
    }

    private function do_kept(string $hold): void
    {
        foreach ($this->holds[$hold] as [$worker, $id]) {
            Assert::assertSame(0, $worker->seen('lost', static fn (array $one) => $one['id'] === $id));
        }
    }

    private function do_forget(string $hold, string $key = 'lock'): void
    {
        foreach ($this->holds[$hold] as [$worker, $id]) {
            $worker->do('forget', id: $id);
        }
    }

    private function do_end(string $client = 'client'): void
    {
        $this->clients[$client]->do('end');
    }

    private function do_cycles(int $workers, int $count): void
    {
        for ($i = 0; $i < $workers; ++$i) {
            $worker = $workers === 1 ? $this->clients['client'] : $this->clients["cycles $i"] ??= new Worker($this->how(null, 10.0, 60.0, null, null));
            $started[] = [$worker, $worker->start('cycles', key: $this->named('lock'), count: $count)];
        }
        foreach ($started ?? [] as [$worker, $number]) {
            Assert::assertSame('none', $worker->answer($number)['got']);
        }
    }

    private function do_objects(int $count): void
    {
        for ($i = 0; $i < $count; ++$i) {
            $this->clients['cycles 0']->do('cycles', key: $this->named((string) $i), count: 1);
        }
    }

    private function do_logged(string $text, int $at_least, ?int $at_most = null, string $client = 'client'): void
    {
        $worker = $this->clients[$client];
        $seen = static fn (array $one) => str_contains($one['text'], $text);
        Stage::until(static fn () => $worker->seen('log', $seen) >= $at_least, "it says $text");
        $at_most === null || Assert::assertLessThanOrEqual($at_most, $worker->seen('log', $seen));
    }

    private function do_bad(string $names, string $key = 'lock', int|string $timeout = 0, mixed ...$options): void
    {
        $answer = $this->clients['client']->lock($key === '' ? '' : $this->named($key), ...['timeout' => $timeout, ...$options]);
        Assert::assertSame('bad', $answer['got'], $answer['text'] ?? '');
        Assert::assertStringContainsString($names, $answer['text']);
    }
}
