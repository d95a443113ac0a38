<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Refused;
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
    private readonly Client $client;

    /** @param array<string, mixed> $tls options of PHP's stream context for `ssl` */
    public function __construct(string $host, int $port, array $tls, float $timeout)
    {
        $secure = str_starts_with($host, 'tls://');
        $this->client = new Client([
            ...str_starts_with($host, '/')
                ? ['scheme' => 'unix', 'path' => $host]
                : ['scheme' => $secure ? 'tls' : 'tcp', 'host' => $secure ? substr($host, 6) : $host, 'port' => $port],
            ...$secure ? ['ssl' => $tls] : [],
            'timeout' => $timeout,
            'read_write_timeout' => $timeout,
        ]);
        try {
            $this->client->connect();
        } catch (PredisException $error) {
            throw new Unanswered($error->getMessage());
        }
    }

    public function ask(array $words, float $timeout): mixed
    {
        try {
            $connection = $this->client->getConnection();
            $stream = $connection instanceof NodeConnectionInterface ? $connection->getResource() : null;
            if (is_resource($stream)) { // from Predis 3 on the bound of the constructor stands
                stream_set_timeout($stream, (int) $timeout, (int) (fmod($timeout, 1.0) * 1e6));
            }
            $reply = $this->client->executeRaw($words, $isRefused);
        } catch (PredisException $error) {
            throw new Unanswered($error->getMessage(), 0, $error);
        } catch (\Throwable $error) { // of a signal handler: a reply may be read in part
            $this->close();
            throw $error;
        }

        return $isRefused ? throw Refused::by($reply) : $reply;
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
