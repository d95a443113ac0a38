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
 * Says where Locks connects, and as whom. phpredis or Predis makes the connection. A client of theirs is only a template, whose
 * settings and state no lock ever touches.
 */
final class Connect
{
    /**
     * @param \Closure(float): Link   $open  makes the connection within this many seconds
     * @param list<string>            $seeds of a cluster
     * @param ?\Closure(string): self $node  of a cluster, by its address
     * @param ?\Closure(float): string $named asks the Sentinels for the address of the primary
     */
    private function __construct(
        private readonly string $name,
        private readonly \Closure $open,
        /** @internal */
        public readonly array $seeds = [],
        private readonly ?\Closure $node = null,
        /** @internal */
        public readonly ?\Closure $named = null,
    ) {
    }

    /** @return array<string, mixed> what `var_dump` shows: no password */
    public function __debugInfo(): array
    {
        return ['to' => $this->name];
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
        return self::by(extension_loaded('redis') ? PhpRedisLink::class : PredisLink::class, $host, $port, $auth, $database, $tls);
    }

    /**
     * @param class-string<Link>   $library
     * @param list<string>         $auth
     * @param array<string, mixed> $tls
     */
    private static function by(
        string $library,
        string $host,
        int $port,
        #[\SensitiveParameter] array $auth,
        int $database,
        array $tls,
    ): self {
        $host = preg_replace(['#^(unix|tcp|redis)://#', '#^(ssl|rediss)://#', '#\[(.*)\]$#'], ['', 'tls://', '$1'], $host);
        $open = static function (float $within) use ($library, $host, $port, $auth, $database, $tls): Link {
            $until = Clock::now() + $within;
            // A library may say in a warning what its error leaves out: why a certificate is not trusted.
            $said = '';
            set_error_handler(static function (int $level, string $text) use (&$said): bool {
                $said .= "; $text";

                return true;
            });
            try {
                $link = new $library($host, $port, $tls, $within);
            } catch (Unanswered $error) {
                throw self::failed($error->getMessage() . $said);
            } finally {
                restore_error_handler();
            }
            $auth === [] || self::reply($link, ['AUTH', ...$auth], $until);
            $database === 0 || self::reply($link, ['SELECT', $database], $until);

            return $link;
        };

        return new self("$host:$port", $open);
    }

    /**
     * Connects to the primary among these servers, whichever it is by then.
     *
     * @param array<self|\Closure|\Redis|ClientInterface> $servers a primary and its replicas
     */
    public static function primaryOf(array $servers): self
    {
        if ($servers === []) {
            throw new \InvalidArgumentException('servers must not be empty');
        }
        $places = array_map(static fn (object $one): self => self::like($one), array_values($servers));

        return new self('a primary and its replicas', static fn (float $within): Link => self::first(
            $places,
            $within,
            static fn (self $one, float $within): Link => $one->primary($within),
        ));
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
        $all = array_map(
            static fn (self|string $one): self => $one instanceof self ? $one : self::to(...self::address('sentinels', $one)),
            array_values($sentinels),
        );
        $ask = static function (self $sentinel, float $within) use ($service): array {
            $until = Clock::now() + $within;
            $asked = $sentinel->open($within);
            $named = self::reply($asked, ['SENTINEL', 'GET-MASTER-ADDR-BY-NAME', $service], $until);
            $asked->close();

            return $named ?: throw new Unanswered("the Sentinel knows no primary of the name $service");
        };
        $open = static function (float $within) use ($all, $ask, $auth, $database, $tls): Link {
            $until = Clock::now() + $within;
            [$host, $port] = self::first($all, $within / 2, $ask);
            $primary = self::to(($tls === [] ? '' : 'tls://') . $host, (int) $port, 0.0, $auth, $database, $tls);

            return $primary->primary(max(0.001, $until - Clock::now()));
        };
        $named = static fn (float $within): string => implode(':', self::first($all, $within, $ask));

        return new self("the primary $service", $open, named: $named);
    }

    /**
     * Connects to each node of a cluster that serves a lock.
     *
     * @param list<string> $seeds   `host:port` of some nodes; of all, if one may be away
     * @param ?\Closure    $connect `fn (string $host, int $port, float $within)` makes a Connect, a Redis, or a Predis client of it
     */
    public static function cluster(array $seeds, ?\Closure $connect = null): self
    {
        if ($seeds === []) {
            throw new \InvalidArgumentException('seeds must not be empty');
        }
        foreach ($seeds as $seed) {
            self::address('seeds', $seed);
        }
        $node = static function (string $address) use ($connect): self {
            [$host, $port] = self::address('seeds', $address);

            return $connect === null
                ? self::to($host, $port)
                : self::like(static fn (float $within) => $connect($host, $port, $within));
        };

        return new self('a cluster', static fn (): never => throw new \LogicException(), array_values($seeds), $node);
    }

    /** @internal for FakeLocks */
    public static function fake(Link $link): self
    {
        return new self('a fake', static fn (): Link => $link);
    }

    /** @internal the node of a cluster with this address; any other place is one server */
    public function node(string $address): self
    {
        return $this->node === null ? $this : ($this->node)($address);
    }

    /** @internal makes the connection within this many seconds */
    public function open(float $within): Link
    {
        return ($this->open)($within);
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
            $auth = array_values((array) ($client->getAuth() ?: []));

            return self::by(PhpRedisLink::class, $host, (int) $client->getPort(), $auth, (int) $client->getDBNum(), $tls);
        }
        if ($client instanceof ClientInterface) {
            return new self('a Predis client', static fn (float $within): Link => self::predis($client)->open($within));
        }
        if ($client instanceof \Closure) {
            $like = static fn (float $within): self => self::like(self::made($client, $within));

            return new self('a closure', static fn (float $within): Link => $like($within)->open($within));
        }
        throw new \InvalidArgumentException('client must be a Redis, a Predis client, a Connect, or a closure that makes one, not '
            . get_debug_type($client) . ($client instanceof \RedisCluster ? ': see Locks::cluster()' : ''));
    }

    /** The result of a program's closure. */
    private static function made(\Closure $make, float $within): object
    {
        try {
            $made = $make($within);
        } catch (\RedisException $error) {
            throw self::failed($error->getMessage(), $error);
        } catch (PredisException $error) {
            throw self::failed((string) preg_replace('/^.*failed: /', '', $error->getMessage()), $error);
        }

        return is_object($made) ? $made : throw new \InvalidArgumentException(
            'client must make a Redis, a Predis client or a Connect, not ' . get_debug_type($made),
        );
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
        $database = (int) ($has['database'] ?? 0);

        return self::by(PredisLink::class, $host, (int) ($has['port'] ?? 6379), $auth, $database, $has['ssl'] ?? []);
    }

    private function primary(float $within): Link
    {
        $until = Clock::now() + $within;
        $link = $this->open($within);
        if ((self::reply($link, ['ROLE'], $until)[0] ?? '') !== 'master') {
            $link->close();
            throw new Unanswered('none of them is the primary now');
        }

        return $link;
    }

    /** @param list<int|string> $words */
    private static function reply(Link $link, array $words, float $until): mixed
    {
        return $link->ask($words, max(0.001, $until - Clock::now()));
    }

    /**
     * The first that succeeds, each within its part of the time.
     *
     * @template T
     *
     * @param list<self>               $places
     * @param \Closure(self, float): T $open
     *
     * @return T
     */
    private static function first(array $places, float $within, \Closure $open): mixed
    {
        $error = null;
        foreach ($places as $place) {
            try {
                return $open($place, $within / count($places));
            } catch (Unanswered | Refused $failed) {
                $error = $error instanceof Refused ? $error : $failed;
            }
        }
        throw $error ?? new \LogicException();
    }

    /**
     * @internal
     *
     * @return array{string, int}
     */
    public static function address(string $name, string $address): array
    {
        if (!preg_match('/^\[?(.+?)\]?:(\d+)$/D', $address, $parts)) {
            throw new \InvalidArgumentException("$name must be host:port, not $address");
        }

        return [$parts[1], (int) $parts[2]];
    }

    /** A failure to connect, as an error of ours. An unknown host and a certificate that is none do not pass. */
    private static function failed(string $text, ?\Throwable $previous = null): Refused|Unanswered
    {
        $final = '/^(NOAUTH|WRONGPASS|NOPERM|ERR) |getaddrinfo.*not known|certificate|SSL operation failed/i';

        return preg_match($final, $text) ? Refused::by($text, $previous) : new Unanswered($text, 0, $previous);
    }
}
