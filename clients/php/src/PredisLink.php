<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;
use Predis\Client;
use Predis\Command\RawCommand;
use Predis\Connection\NodeConnectionInterface;
use Predis\PredisException;
use Predis\Response\ErrorInterface;

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
        ], ['exceptions' => false]);
        try {
            $this->client->connect();
        } catch (PredisException $error) {
            throw new Unanswered($error->getMessage());
        }
    }

    public function ask(array $words, float $timeout): mixed
    {
        $reply = $this->within($timeout, function () use ($words, &$isError): mixed {
            return $this->client->executeRaw($words, $isError);
        });

        return $isError ? throw Refused::by((string) $reply) : $reply;
    }

    public function askAll(array $commands, float $timeout): array
    {
        $replies = $this->within($timeout, function () use ($commands): array {
            $pipeline = $this->client->pipeline();
            foreach ($commands as $words) {
                $pipeline->executeCommand(RawCommand::create(...$words));
            }

            return $pipeline->execute();
        });
        $refused = static fn (mixed $one) => $one instanceof ErrorInterface ? Refused::by($one->getMessage()) : $one;

        return array_map($refused, $replies);
    }

    private function within(float $timeout, \Closure $work): mixed
    {
        try {
            $connection = $this->client->getConnection();
            $stream = $connection instanceof NodeConnectionInterface ? $connection->getResource() : null;
            if (is_resource($stream)) { // from Predis 3 on the bound of the constructor stands
                stream_set_timeout($stream, (int) $timeout, (int) (fmod($timeout, 1.0) * 1e6));
            }

            return $work();
        } catch (PredisException $error) {
            throw new Unanswered($error->getMessage());
        } catch (\Throwable $error) { // of a signal's handler: a reply may be read in part
            $this->close();
            throw $error;
        }
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
