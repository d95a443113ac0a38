<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;

/**
 * A connection of our own to one server: RESP2 on a stream that does not block.
 *
 * Replies come in the order of the commands. A caller that gives up on one leaves the connection as it is: the late reply is still
 * read as the reply to its own command. So what takes a request back can be sent behind it.
 *
 * @internal
 */
final class Connection
{
    /** A connect that hangs is not waited for alone: so often another one begins, and the first to succeed is taken. */
    private const AGAIN = 1.0;

    /** @var ?\Fiber<mixed, mixed, Connection, array{resource, bool}> the attempt to connect that runs now */
    private static ?\Fiber $running = null;

    private string $in = '';
    private string $out = '';
    /** @var list<?\Closure(mixed): void> what to do with the replies to come */
    private array $pending = [];
    private bool $open = true;

    /** @param resource $stream */
    private function __construct(private $stream)
    {
    }

    /**
     * Opens one in time. A name, a topology, and who is primary are asked for anew by each attempt.
     *
     * @param Connect $where
     */
    public static function open(Connect $where, float $until): self
    {
        if (!self::mayStartFibers()) {
            return self::openInTurn($where, $until);
        }
        /** @var array<int, array{\Fiber<mixed, mixed, Connection, array{resource, bool}>, ?array{resource, bool}}> $attempts */
        $attempts = [];
        $error = null;
        $next = Clock::now();
        while (($now = Clock::now()) < $until || $attempts === []) {
            if ($now >= $next) {
                $next = $now + self::AGAIN;
                foreach ($where->attempts(max(0.001, $until - $now)) as $way) {
                    $attempts[] = [new \Fiber(static fn () => $way($until)), null];
                }
            }
            foreach ($attempts as $i => [$fiber, $waits]) {
                try {
                    self::$running = $fiber;
                    $attempts[$i][1] = $fiber->isStarted() ? $fiber->resume() : $fiber->start();
                    if ($fiber->isTerminated()) {
                        return $fiber->getReturn();
                    }
                } catch (Unanswered | Refused $failed) {
                    unset($attempts[$i]);
                    $error = $error instanceof Refused ? $error : $failed;
                } finally {
                    self::$running = null;
                }
            }
            if ($attempts === []) {
                throw $error ?? new Unanswered('there is no server to connect to');
            }
            self::select(array_filter(array_column($attempts, 1)), min($next, $until));
        }
        throw $error ?? new Unanswered('the server does not answer');
    }

    /** Returns false in a destructor of PHP before 8.4. */
    private static function mayStartFibers(): bool
    {
        if (PHP_VERSION_ID >= 80400) {
            return true;
        }
        try {
            (new \Fiber(static fn () => null))->start();

            return true;
        } catch (\FiberError) {
            return false;
        }
    }

    /**
     * Opens one in time, where no fiber can be started: one attempt after the other.
     *
     * @param Connect $where
     */
    private static function openInTurn(Connect $where, float $until): self
    {
        $error = null;
        foreach ($where->attempts(max(0.001, $until - Clock::now())) as $way) {
            try {
                return $way($until);
            } catch (Unanswered | Refused $failed) {
                $error = $error instanceof Refused ? $error : $failed;
            }
        }
        throw $error ?? new Unanswered('there is no server to connect to');
    }

    /**
     * Connects to one server.
     *
     * @param array<string, mixed> $tls
     */
    public static function to(string $address, array $tls, float $until): self
    {
        $secure = str_starts_with($address, 'tls://');
        $name = (string) preg_replace('#^\w+://\[?(.*?)\]?(?::\d+)?$#D', '$1', $address);
        $context = stream_context_create(['ssl' => $tls + ['peer_name' => $name], 'socket' => ['tcp_nodelay' => true]]);
        $flags = STREAM_CLIENT_CONNECT | STREAM_CLIENT_ASYNC_CONNECT;
        $plain = $secure ? 'tcp' . substr($address, 3) : $address;
        [$stream, $said] = self::quietly(static function () use ($plain, $flags, $context): mixed {
            return stream_socket_client($plain, $code, $text, 0.0, $flags, $context);
        });
        if ($stream === false) {
            throw Connect::failed("$address: $said");
        }
        stream_set_blocking($stream, false);
        if (!self::ready($stream, true, $until)) {
            throw new Unanswered("$address: no connection in time");
        }
        if (stream_socket_get_name($stream, true) === false) { // to write tells why
            [, $said] = self::quietly(static fn () => fwrite($stream, "\r\n"));
            throw Connect::failed("$address: " . ($said ?: 'no connection'));
        }
        while ($secure) {
            [$done, $said] = self::quietly(static fn () => stream_socket_enable_crypto(
                $stream,
                true,
                STREAM_CRYPTO_METHOD_TLSv1_2_CLIENT | STREAM_CRYPTO_METHOD_TLSv1_3_CLIENT,
            ));
            if ($done === false) {
                throw Connect::failed("$address: $said");
            }
            if ($done === true) {
                break;
            }
            if (!self::ready($stream, false, $until)) {
                throw new Unanswered("$address: no connection in time");
            }
        }

        return new self($stream);
    }

    public function isOpen(): bool
    {
        if ($this->open && $this->pending === []) {
            $this->read(); // the other end may have closed it meanwhile
        }

        return $this->open;
    }

    /** Ends it. What is still to come is nobody's. */
    public function close(): void
    {
        if ($this->open) {
            $this->open = false;
            fclose($this->stream);
            [$pending, $this->pending] = [$this->pending, []];
            foreach ($pending as $then) {
                $then !== null && $then(new Unanswered('the connection has ended'));
            }
        }
    }

    /**
     * Sends a command and waits for nothing.
     *
     * @param list<int|string>           $words
     * @param ?\Closure(mixed): void $then gets the reply: a value, a Refused, or an Unanswered if there is none
     */
    public function post(array $words, ?\Closure $then = null): void
    {
        $data = '*' . count($words) . "\r\n";
        foreach ($words as $word) {
            $data .= '$' . strlen((string) $word) . "\r\n$word\r\n";
        }
        self::undisturbed(function () use ($data, $then): void {
            $this->out .= $data;
            $this->pending[] = $then;
            $this->write();
        });
    }

    /**
     * Returns the reply: a string, a number, a list, or null. When the time is up the reply that comes later is skipped.
     *
     * @param list<int|string> $words
     */
    public function call(array $words, float $until): mixed
    {
        $reply = $this->callAll([$words], $until)[0];

        return $reply instanceof \Throwable ? throw $reply : $reply;
    }

    /**
     * Returns the replies to many, sent in one go. A refusal stands in the place of its reply.
     *
     * @param list<list<int|string>> $commands
     *
     * @return list<mixed>
     */
    public function callAll(array $commands, float $until): array
    {
        $replies = [];
        foreach ($commands as $i => $words) {
            $this->post($words, static function (mixed $reply) use (&$replies, $i): void {
                $replies[$i] = $reply;
            });
        }
        while (count($replies) < count($commands)) {
            if (!$this->open) {
                throw new Unanswered('the connection has ended');
            }
            if (!self::ready($this->stream, false, $until, $this->out !== '')) {
                throw new Unanswered('the server does not answer');
            }
            self::undisturbed($this->write(...));
            $this->read();
        }
        ksort($replies);
        foreach ($replies as $reply) {
            if ($reply instanceof Unanswered) {
                throw $reply;
            }
        }

        return $replies;
    }

    private function write(): void
    {
        while ($this->open && $this->out !== '') {
            [$sent, $said] = self::quietly(fn () => fwrite($this->stream, $this->out));
            if ($sent === false || $said !== '') {
                $this->close();
            } elseif ($sent === 0) {
                return; // it is written while the reply is awaited
            } else {
                $this->out = substr($this->out, $sent);
            }
        }
    }

    private function read(): void
    {
        self::undisturbed(function (): void {
            while ($this->open && ($data = (string) @fread($this->stream, 65536)) !== '') {
                $this->in .= $data;
            }
            $ended = $this->open && feof($this->stream);
            for ($at = 0; $this->open && ($next = $this->parse($at)) !== null; [$at] = $next) {
                $then = array_shift($this->pending);
                $then !== null && $then($next[1]);
            }
            $this->in = substr($this->in, $at);
            $ended && $this->close();
        });
    }

    /** @return ?array{int, mixed} where the next reply begins, and this one; null: the rest of it is still to come */
    private function parse(int $at): ?array
    {
        $end = strpos($this->in, "\r\n", $at);
        if ($end === false) {
            return null;
        }
        $line = substr($this->in, $at + 1, $end - $at - 1);
        $after = $end + 2;
        switch ($this->in[$at]) {
            case ':':
                return [$after, (int) $line];
            case '+':
                return [$after, $line === 'OK' ? true : $line];
            case '-':
                return [$after, Refused::by($line)];
            case '$':
                $size = (int) $line;
                if ($size < 0) {
                    return [$after, null];
                }

                return strlen($this->in) < $after + $size + 2
                    ? null
                    : [$after + $size + 2, substr($this->in, $after, $size)];
            case '*':
                $values = (int) $line < 0 ? null : [];
                for ($i = (int) $line; $i > 0; --$i) {
                    $next = $this->parse($after);
                    if ($next === null) {
                        return null;
                    }
                    [$after, $values[]] = $next;
                }

                return [$after, $values];
            default:
                throw new Unanswered('this is no Redis or Valkey server');
        }
    }

    /**
     * Returns true if it can be read, or written. An attempt to connect lets the others go on meanwhile.
     *
     * @param resource $stream
     */
    private static function ready($stream, bool $write, float $until, bool $both = false): bool
    {
        $fiber = self::$running;
        while (Clock::now() < $until) {
            if ($fiber !== null && $fiber === \Fiber::getCurrent()) {
                self::$running = null;
                \Fiber::suspend([$stream, $write]);
                [$read, $out] = $write ? [[], [$stream]] : [[$stream], []];
                $none = null;
                if (@stream_select($read, $out, $none, 0)) {
                    return true;
                }
            } elseif (self::select([[$stream, $write], ...($both ? [[$stream, true]] : [])], $until)) {
                return true;
            }
        }

        return false;
    }

    /** @param array<array{resource, bool}> $streams each with true if it is to be written */
    private static function select(array $streams, float $until): bool
    {
        $left = max(0.0, min($until - Clock::now(), 3600.0));
        [$read, $write, $none] = [[], [], null];
        foreach ($streams as [$stream, $isWrite]) {
            $isWrite ? $write[] = $stream : $read[] = $stream;
        }
        $count = @stream_select($read, $write, $none, (int) $left, (int) (fmod($left, 1) * 1e6)); // false: there was a signal

        return $count !== false && $count > 0;
    }

    /**
     * Runs it and returns its value with what PHP warns of meanwhile, which nobody else hears of.
     *
     * @return array{mixed, string}
     */
    private static function quietly(\Closure $work): array
    {
        $said = [];
        set_error_handler(static function (int $level, string $text) use (&$said): bool {
            $said[] = (string) preg_replace('/^\w+\(\): /', '', $text);

            return true;
        });
        try {
            return [$work(), implode('; ', $said)];
        } finally {
            restore_error_handler();
        }
    }

    /** Runs it while no handler of a signal does: one that throws would lose bytes, and one that asks would read ours. */
    private static function undisturbed(\Closure $work): void
    {
        $signals = function_exists('pcntl_async_signals') && pcntl_async_signals(false);
        try {
            $work();
        } finally {
            if ($signals) {
                pcntl_async_signals(true);
                pcntl_signal_dispatch();
            }
        }
    }
}
