<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock\Connection;

use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;
use Predis\Client;
use Predis\ClientInterface;
use Predis\Command\RawCommand;
use Predis\Connection\NodeConnectionInterface;
use Predis\PredisException;
use Predis\Response\ErrorInterface;

/**
 * A connection of our own by Predis. The program's client is its pattern: its time-outs may be any.
 *
 * @internal
 */
final class Predis implements Connection
{
    private function __construct(private readonly Client $client)
    {
    }

    /** Whoever is primary now, where the client knows several. */
    public static function like(ClientInterface $client, float $bound): self
    {
        $connection = $client->getConnection();
        try {
            if (!$connection instanceof NodeConnectionInterface && method_exists($connection, 'getMaster')) {
                $connection = $connection->getMaster();
            }
            if (!$connection instanceof NodeConnectionInterface) {
                throw new \InvalidArgumentException('client must be of one server or of a primary and its replicas; '
                    . 'a cluster is Locks::cluster(...)');
            }
            $own = ['timeout' => $bound, 'read_write_timeout' => $bound, 'persistent' => null];
            $made = new Client($own + $connection->getParameters()->toArray(), ['exceptions' => false]);
            $made->connect();
        } catch (PredisException $error) {
            throw self::failed($error);
        }

        return new self($made);
    }

    public function call(array $words, float $bound): mixed
    {
        try {
            $connection = $this->client->getConnection();
            stream_set_timeout($connection->getResource(), (int) $bound, (int) (fmod($bound, 1) * 1e6));
            $reply = $this->client->executeRaw(array_map(strval(...), $words), $refused);
        } catch (PredisException $error) {
            $this->close();
            throw self::failed($error);
        }
        if ($refused) {
            throw Refused::by((string) $reply);
        }

        return $reply;
    }

    public function callAll(array $commands, float $bound): array
    {
        try {
            $connection = $this->client->getConnection();
            stream_set_timeout($connection->getResource(), (int) $bound, (int) (fmod($bound, 1) * 1e6));
            $asked = array_map(static fn (array $words) => RawCommand::create(...array_map(strval(...), $words)), $commands);
            array_map($connection->writeRequest(...), $asked);
            $replies = array_map($connection->readResponse(...), $asked);
        } catch (PredisException $error) {
            $this->close();
            throw self::failed($error);
        }

        return array_map(static fn (mixed $one) => $one instanceof ErrorInterface ? null : $one, $replies);
    }

    public function close(): void
    {
        $this->client->disconnect();
    }

    public function isShared(): bool
    {
        return false;
    }

    private static function failed(PredisException $error): \Throwable
    {
        // What the server says to AUTH and SELECT is told as a failure of the connection.
        if (preg_match('/failed: ((NOAUTH|WRONGPASS|NOPERM|ERR) .*?)(?: \[\w+:\/\/.*)?$/', $error->getMessage(), $said)) {
            return Refused::by($said[1], $error);
        }

        return new Unanswered($error->getMessage(), 0, $error);
    }
}
