<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Unanswered;
use Predis\Client;
use Predis\Connection\NodeConnectionInterface;
use Predis\PredisException;

/**
 * A connection of Predis.
 *
 * @internal
 */
final class PredisLink implements Link
{
    /** From Predis 3 on a connection keeps the bound that it is made with: this one outlasts a slice of a wait. */
    private const LONGEST = 4.0;

    public function __construct(private readonly Client $client)
    {
        $connection = $client->getConnection();
        if (!$connection instanceof NodeConnectionInterface) {
            throw new \InvalidArgumentException('client must be of one server: for others see Connect::sentinel() and Locks::cluster()');
        }
        if ($connection->getParameters()->persistent ?? false) {
            throw new \InvalidArgumentException('client must not be persistent: others would use the same connection');
        }
        $client->connect();
    }

    /** @param array<string, mixed> $tls options of PHP's stream context for `ssl` */
    public static function to(string $host, int $port, array $tls, float $within): self
    {
        $isSecure = str_starts_with($host, 'tls://');

        return new self(new Client([
            ...str_starts_with($host, '/')
                ? ['scheme' => 'unix', 'path' => $host]
                : ['scheme' => $isSecure ? 'tls' : 'tcp', 'host' => $isSecure ? substr($host, 6) : $host, 'port' => $port],
            ...$isSecure ? ['ssl' => $tls] : [],
            'timeout' => $within,
            'read_write_timeout' => self::LONGEST,
        ]));
    }

    /** @return array<string, mixed> what `var_dump` shows: no password */
    public function __debugInfo(): array
    {
        return ['connected' => $this->isOpen()];
    }

    public function ask(array $words, float $timeout): mixed
    {
        try {
            $connection = $this->client->getConnection();
            $stream = $connection instanceof NodeConnectionInterface ? $connection->getResource() : null;
            if (is_resource($stream)) { // see LONGEST
                stream_set_timeout($stream, (int) $timeout, (int) (fmod($timeout, 1.0) * 1e6));
            }
            $reply = $this->client->executeRaw($words, $isRefused);
        } catch (PredisException $error) {
            throw new Unanswered($error->getMessage(), 0, $error);
        } catch (\Throwable $error) { // of a signal handler: a reply may be read in part
            $this->close();
            throw $error;
        }

        return $isRefused ? throw ErrorReply::of($reply) : $reply;
    }

    public function isOpen(): bool
    {
        return $this->client->isConnected();
    }

    public function close(): void
    {
        $this->client->disconnect();
    }
}
