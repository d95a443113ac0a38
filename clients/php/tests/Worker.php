<?php

declare(strict_types=1);

namespace Dlock\Tests;

/** A process with one connection, which does what the test asks. */
final class Worker
{
    /** @var list<array<string, mixed>> */
    public array $events = [];
    /** @var list<array<string, mixed>> */
    private array $replies = [];
    private int $owed = 0;
    /** @var resource */
    private $process;
    /** @var array<int, resource> */
    private array $pipes = [];
    private string $rest = '';

    /** @param array<string, mixed> $how see Kinds::locks() */
    public function __construct(array $how = [])
    {
        $command = [PHP_BINARY, __DIR__ . '/program.php'];
        $process = proc_open($command, [['pipe', 'r'], ['pipe', 'w'], STDERR], $this->pipes);
        $this->process = $process ?: throw new \RuntimeException('no process');
        stream_set_blocking($this->pipes[1], false);
        $this->do('client', ...$how);
    }

    public function __destruct()
    {
        $this->kill();
    }

    public function pid(): int
    {
        return proc_get_status($this->process)['pid'];
    }

    public function kill(): void
    {
        if (is_resource($this->process)) {
            proc_terminate($this->process, SIGKILL);
            proc_close($this->process);
        }
    }

    /** Tells it to, and waits for nothing. */
    public function start(string $do, mixed ...$how): int
    {
        fwrite($this->pipes[0], json_encode(['do' => $do, ...$how]) . "\n");

        return $this->owed++;
    }

    /**
     * The answer to what was started.
     *
     * @return array<string, mixed>
     */
    public function answer(int $number, ?float $patience = null): array
    {
        return Stage::until(function () use ($number) {
            $this->read();

            return $this->replies[$number] ?? null;
        }, 'the worker has done it', $patience ?? 2 * Stage::patience());
    }

    /** @return array<string, mixed> */
    public function do(string $do, mixed ...$how): array
    {
        return $this->answer($this->start($do, ...$how));
    }

    /** @return array<string, mixed> */
    public function lock(string $key, int|float|null|string $timeout = null, mixed ...$how): array
    {
        return $this->do('lock', ...['key' => $key, 'timeout' => $timeout, ...$how]);
    }

    public function isDone(int $number): bool
    {
        $this->read();

        return isset($this->replies[$number]);
    }

    public function seen(string $event, ?callable $which = null): int
    {
        $this->read();

        return count(array_filter($this->events, static fn (array $one) => $one['event'] === $event
            && ($which === null || $which($one))));
    }

    public function awaitLost(int $id, ?float $within = null): void
    {
        Stage::until(fn () => $this->seen('lost', static fn (array $one) => $one['id'] === $id), 'it is told lost', $within);
    }

    private function read(): void
    {
        $this->rest .= (string) stream_get_contents($this->pipes[1]);
        while (($end = strpos($this->rest, "\n")) !== false) {
            $line = json_decode(substr($this->rest, 0, $end), true) ?? ['got' => substr($this->rest, 0, $end)];
            $this->rest = substr($this->rest, $end + 1);
            if (isset($line['event'])) {
                $this->events[] = $line;
            } else {
                $this->replies[] = $line;
            }
        }
        if (feof($this->pipes[1]) && count($this->replies) < $this->owed) {
            throw new \RuntimeException('the worker has ended');
        }
    }
}
