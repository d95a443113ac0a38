<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;
use Predis\ClientInterface;
use Predis\Connection\NodeConnectionInterface;
use Predis\PredisException;

/**
 * Says where Locks connects, and as whom. Locks makes connections of its own and uses no library for them: a client of phpredis
 * or Predis is only a pattern, whose settings and state no lock ever touches.
 */
final class Connect
{
    /**
     * @param list<string>                                      $auth the password, or the user and the password
     * @param array<string, mixed>                              $tls  options of PHP's stream context for `ssl`
     * @param ?\Closure(float): list<\Closure(float): Connection> $ways how to try, where this is no single server
     * @param list<string>                                      $seeds of a cluster
     * @param ?\Closure(string): self                           $node of a cluster, by its name
     */
    private function __construct(
        private readonly string $address,
        private readonly array $auth = [],
        private readonly int $database = 0,
        private readonly array $tls = [],
        private readonly ?\Closure $ways = null,
        /** @internal */
        public readonly array $seeds = [],
        private readonly ?\Closure $node = null,
    ) {
    }

    /** @return array<string, mixed> what `var_dump` shows: no password */
    public function __debugInfo(): array
    {
        return ['address' => $this->address, 'database' => $this->database];
    }

    /**
     * Connects to `redis://[user:password@]host[:port][/database]`, or to `rediss://…` by TLS.
     *
     * @param array<string, mixed> $tls options of PHP's stream context for `ssl`
     */
    public static function url(#[\SensitiveParameter] string $url, array $tls = []): self
    {
        $parts = parse_url($url);
        if (!isset($parts['host']) || !in_array($parts['scheme'] ?? '', ['redis', 'rediss'], true)) {
            throw new \InvalidArgumentException('url must be redis://host or rediss://host');
        }
        $auth = array_map(rawurldecode(...), array_filter([$parts['user'] ?? '', $parts['pass'] ?? ''], strlen(...)));
        $host = ($parts['scheme'] === 'rediss' ? 'tls://' : '') . $parts['host'];
        $database = (int) ltrim($parts['path'] ?? '', '/');

        return self::to($host, $parts['port'] ?? 6379, 0.0, array_values($auth), $database, $tls);
    }

    /**
     * Connects to a host (`tls://host` by TLS), or to a socket (`/path`).
     *
     * @param float                $bound is not used any more: Locks bounds every connect by its replyTimeout
     * @param list<string>         $auth  the password, or the user and the password
     * @param array<string, mixed> $tls   options of PHP's stream context for `ssl`
     */
    public static function to(
        string $host,
        int $port,
        float $bound = 0.0,
        #[\SensitiveParameter] array $auth = [],
        int $database = 0,
        array $tls = [],
    ): self {
        if (preg_match('#^(?:unix://)?(/.*)$#D', $host, $path)) {
            return new self("unix://$path[1]", $auth, $database);
        }
        preg_match('#^(?:(\w+)://)?\[?(.*?)\]?$#D', $host, $parts);
        $host = str_contains($parts[2], ':') ? "[$parts[2]]" : $parts[2];
        $scheme = in_array($parts[1], ['tls', 'ssl', 'rediss'], true) ? 'tls' : 'tcp';

        return new self("$scheme://$host:$port", $auth, $database, $tls);
    }

    /**
     * Connects to the primary among these servers, whichever it is by then.
     *
     * @param array<self|\Closure|\Redis|ClientInterface> $servers a primary and its replicas
     */
    public static function primaryOf(array $servers): self
    {
        if ($servers === []) {
            throw new \InvalidArgumentException('ways must not be empty');
        }
        $primary = static fn (\Closure $way): \Closure => static fn (float $until) => self::primary($way($until), $until);

        return new self('a primary and its replicas', ways: static function (float $within) use ($servers, $primary): array {
            $ways = array_map(static fn (object $one) => self::like($one)->attempts($within), array_values($servers));

            return array_map($primary, array_merge(...$ways));
        });
    }

    /**
     * Connects to the primary that the Sentinels name.
     *
     * @param array<self|string>   $sentinels `host:port`, or a Connect for those that want a password or TLS
     * @param string               $service   the name under which they watch it
     * @param list<string>         $auth      the password of the primary, or its user and password
     * @param array<string, mixed> $tls       options of PHP's stream context for `ssl`; with one the primary is reached by TLS
     */
    public static function sentinel(
        array $sentinels,
        string $service,
        #[\SensitiveParameter] array $auth = [],
        int $database = 0,
        array $tls = [],
    ): self {
        if ($sentinels === []) {
            throw new \InvalidArgumentException('sentinels must not be empty');
        }
        $all = array_map(static function (self|string $one): self {
            if ($one instanceof self) {
                return $one;
            }
            if (!preg_match('/^(.+):(\d+)$/D', $one, $parts)) {
                throw new \InvalidArgumentException("sentinels must be host:port, not $one");
            }

            return self::to($parts[1], (int) $parts[2]);
        }, array_values($sentinels));
        $primary = new self('', $auth, $database, $tls);
        $ask = static fn (self $sentinel) => static function (float $until) use ($sentinel, $service, $primary, $tls): Connection {
            $asked = $sentinel->dial($until);
            $named = $asked->call(['SENTINEL', 'GET-MASTER-ADDR-BY-NAME', $service], $until);
            $asked->close();
            if (!is_array($named)) {
                throw new Unanswered("the Sentinel knows no primary of the name $service");
            }
            $host = ($tls === [] ? '' : 'tls://') . $named[0];
            $where = self::to($host, (int) $named[1], 0.0, $primary->auth, $primary->database, $tls);

            return self::primary($where->dial($until), $until);
        };

        return new self("the primary $service", ways: static fn () => array_map($ask, $all));
    }

    /**
     * Connects to each node of a cluster that serves a lock. (RedisCluster of phpredis is not used: its time-out is one for all.)
     *
     * @param list<string> $seeds   `host:port` of some nodes; of all, if one may be away
     * @param ?\Closure    $connect `fn (string $host, int $port, float $within)` makes a Connect, a Redis, or a Predis client of it
     */
    public static function cluster(array $seeds, ?\Closure $connect = null): self
    {
        if ($seeds === []) {
            throw new \InvalidArgumentException('seeds must not be empty');
        }
        array_map(Servers::parts(...), $seeds);
        $node = static function (string $name) use ($connect): self {
            [$host, $port] = Servers::parts($name);

            return $connect === null
                ? self::to($host, $port)
                : self::like(static fn (float $within) => $connect($host, $port, $within));
        };

        return new self('a cluster', seeds: array_values($seeds), node: $node);
    }

    /** @internal */
    public function node(string $name): self
    {
        return $this->node === null ? $this : ($this->node)($name);
    }

    /**
     * Connects as this client does: by its host, port, user, password, database and TLS. (phpredis does not tell the TLS options
     * of a client: with a certificate authority of your own use Connect::url.)
     *
     * @internal
     *
     * @param array<string, mixed> $tls
     */
    public static function like(object $client, array $tls = []): self
    {
        if ($client instanceof self) {
            return $client;
        }
        if ($client instanceof \Redis) {
            try {
                $host = $client->getHost();
            } catch (\RedisException $error) {
                throw new \InvalidArgumentException("client must be connected once: {$error->getMessage()}", 0, $error);
            }
            if (!is_string($host)) {
                throw new \InvalidArgumentException('client must be connected once');
            }

            $auth = (array) ($client->getAuth() ?: []);

            return self::to($host, (int) $client->getPort(), 0.0, $auth, (int) $client->getDBNum(), $tls);
        }
        if ($client instanceof ClientInterface) {
            return new self('a Predis client', ways: static fn (float $within) => self::predis($client)->attempts($within));
        }
        if ($client instanceof \Closure) {
            $made = static fn (float $within): self => self::like(self::made($client, $within));

            return new self('a closure', ways: static fn (float $within) => $made($within)->attempts($within));
        }
        throw new \InvalidArgumentException('client must be a Redis, a Predis client, a Connect, or a closure that makes one, not '
            . get_debug_type($client) . ($client instanceof \RedisCluster ? ': see Locks::cluster()' : ''));
    }

    /** The result of a program's closure. */
    public static function made(\Closure $make, mixed ...$about): object
    {
        try {
            $made = $make(...$about);
        } catch (\RedisException $error) {
            throw self::failed($error->getMessage(), $error);
        } catch (PredisException $error) {
            throw self::failed((string) preg_replace('/^.*failed: /', '', $error->getMessage()), $error);
        }

        return is_object($made) ? $made : throw new \InvalidArgumentException(
            'client must make a Redis, a Predis client or a Connect, not ' . get_debug_type($made),
        );
    }

    /**
     * Returns ways to connect, which are tried at the same time.
     *
     * @internal
     *
     * @return list<\Closure(float): Connection>
     */
    public function attempts(float $within): array
    {
        return $this->ways !== null ? ($this->ways)($within) : [$this->dial(...)];
    }

    /** Where a Predis client connects: to the primary, if it knows several servers. */
    private static function predis(ClientInterface $client): self
    {
        $connection = $client->getConnection();
        try {
            if (method_exists($connection, 'querySentinel')) { // it would name the primary that it has named before
                $connection->querySentinel();
            }
            if (!$connection instanceof NodeConnectionInterface && method_exists($connection, 'getMaster')) {
                $connection = $connection->getMaster();
            }
        } catch (PredisException $error) {
            throw new Unanswered($error->getMessage(), 0, $error);
        }
        if (!$connection instanceof NodeConnectionInterface) {
            throw new \InvalidArgumentException('client must be of one server or of a primary and its replicas; '
                . 'a cluster is Locks::cluster(...)');
        }
        $has = $connection->getParameters()->toArray();
        $host = match ($has['scheme'] ?? 'tcp') {
            'unix' => $has['path'],
            'tls', 'rediss' => 'tls://' . $has['host'],
            default => $has['host'],
        };
        $auth = array_values(array_filter([$has['username'] ?? '', $has['password'] ?? ''], strlen(...)));

        return self::to($host, (int) ($has['port'] ?? 6379), 0.0, $auth, (int) ($has['database'] ?? 0), $has['ssl'] ?? []);
    }

    private static function primary(Connection $connection, float $until): Connection
    {
        if (($connection->call(['ROLE'], $until)[0] ?? '') !== 'master') {
            $connection->close();
            throw new Unanswered('none of them is the primary now');
        }

        return $connection;
    }

    /** Connects to this one server, and says who we are. */
    private function dial(float $until): Connection
    {
        $connection = Connection::to($this->address, $this->tls, $until);
        if ($this->auth !== []) {
            $connection->call(['AUTH', ...$this->auth], $until);
        }
        if ($this->database !== 0) {
            $connection->call(['SELECT', $this->database], $until);
        }

        return $connection;
    }

    /**
     * A failure to connect, as an error of ours. An unknown host and a certificate that is none do not become better by waiting.
     *
     * @internal
     */
    public static function failed(string $text, ?\Throwable $previous = null): Refused | Unanswered
    {
        $final = '/^(NOAUTH|WRONGPASS|NOPERM|ERR) |getaddrinfo.*not known|certificate|SSL operation failed/i';

        return preg_match($final, $text) ? Refused::by($text, $previous) : new Unanswered($text, 0, $previous);
    }
}
