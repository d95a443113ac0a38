<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;
use Predis\Client;
use Predis\PredisException;

/** Says where Locks connects, and as whom. phpredis or Predis makes the connection. */
final class Connect
{
    /**
     * @param \Closure(float, string): object  $open  makes the connection within this many seconds, in a cluster to this address
     * @param list<string>                     $seeds of a cluster
     * @param ?\Closure(float): string         $named asks the Sentinels for the address of the primary
     */
    private function __construct(
        private readonly string $name,
        private readonly \Closure $open,
        /** @internal */
        public readonly array $seeds = [],
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
     * Connects to `redis://[user:password@]host[:port][/database]`, to `rediss://…` by TLS, or to the socket `unix:///path`.
     *
     * @param array<string, mixed> $tls options of PHP's stream context for `ssl`
     */
    public static function url(#[\SensitiveParameter] string $url, array $tls = []): self
    {
        if (preg_match('#^unix:(?://)?(/.+)$#Ds', $url, $socket)) { // parse_url refuses a URL with three slashes
            return self::server($socket[1], 0);
        }
        $parts = parse_url($url) ?: [];
        $scheme = $parts['scheme'] ?? '';
        if (!isset($parts['host']) || !in_array($scheme, ['redis', 'rediss'], true)) {
            throw new \InvalidArgumentException('url must be redis://host, rediss://host or unix:///path');
        }
        $auth = array_map(rawurldecode(...), array_filter([$parts['user'] ?? '', $parts['pass'] ?? ''], strlen(...)));
        $host = ($scheme === 'rediss' ? 'tls://' : '') . trim($parts['host'], '[]');
        $database = substr($parts['path'] ?? '', 1);
        if ($database !== '' && !ctype_digit($database)) {
            throw new \InvalidArgumentException("the database in the url must be a number, not $database");
        }

        return self::server($host, $parts['port'] ?? 6379, array_values($auth), (int) $database, $tls);
    }

    /**
     * @param list<string>         $auth the password, or the user and the password
     * @param array<string, mixed> $tls
     */
    private static function server(
        string $host,
        int $port,
        #[\SensitiveParameter] array $auth = [],
        int $database = 0,
        array $tls = [],
    ): self {
        $name = $port === 0 ? $host : "$host:$port"; // a socket has no port

        return new self($name, static function (float $within) use ($host, $port, $auth, $database, $tls): Link {
            $until = Clock::now() + $within;
            $link = extension_loaded('redis')
                ? PhpRedisLink::to($host, $port, $tls, $within)
                : PredisLink::to($host, $port, $tls, $within);
            if ($auth !== []) {
                $link->ask(['AUTH', ...$auth], max(0.001, $until - Clock::now()));
            }
            if ($database !== 0) {
                $link->ask(['SELECT', $database], max(0.001, $until - Clock::now()));
            }

            return $link;
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
        $all = array_map(
            static fn (self|string $one): self => $one instanceof self ? $one : self::server(...self::address('sentinels', $one)),
            array_values($sentinels),
        );
        $open = static function (float $within, string $address) use ($auth, $database, $tls): Link {
            $until = Clock::now() + $within;
            [$host, $port] = self::address('sentinels', $address);
            $link = self::server(($tls === [] ? '' : 'tls://') . $host, $port, $auth, $database, $tls)->open($within);
            if (($link->ask(['ROLE'], max(0.001, $until - Clock::now()))[0] ?? '') !== 'master') {
                $link->close();
                throw new Unanswered("$address is not the primary now");
            }

            return $link;
        };

        return new self("the primary $service", $open, named: static fn (float $within): string => self::named($all, $service, $within));
    }

    /**
     * Returns the address that the first Sentinel names which answers, each within its part of the time.
     *
     * @param list<self> $sentinels
     */
    private static function named(array $sentinels, string $service, float $within): string
    {
        $error = null;
        foreach ($sentinels as $sentinel) {
            $until = Clock::now() + $within / count($sentinels);
            try {
                $link = $sentinel->open($until - Clock::now());
                $address = $link->ask(['SENTINEL', 'GET-MASTER-ADDR-BY-NAME', $service], max(0.001, $until - Clock::now()));
                $link->close();
                if ($address) {
                    return implode(':', $address);
                }
                $error ??= new Unanswered("the Sentinel knows no primary of the name $service");
            } catch (Unanswered | Refused $failed) {
                $error = $error instanceof Refused ? $error : $failed;
            }
        }
        throw $error ?? new \LogicException();
    }

    /**
     * Connects to each node of a cluster that serves a lock.
     *
     * @param list<string> $seeds   `host:port` of some nodes; of all, if one may be away
     * @param ?\Closure    $connect `fn (string $host, int $port, float $within)` makes a Redis, a Predis client or a Connect of it
     */
    public static function cluster(array $seeds, ?\Closure $connect = null): self
    {
        if ($seeds === []) {
            throw new \InvalidArgumentException('seeds must not be empty');
        }
        foreach ($seeds as $seed) {
            self::address('seeds', $seed);
        }
        $connect ??= static fn (string $host, int $port): self => self::server($host, $port);
        $open = static fn (float $within, string $address): object => $connect(...self::address('seeds', $address), ...[$within]);

        return new self('a cluster', $open, array_values($seeds));
    }

    /** @internal of what the constructor of Locks gets */
    public static function of(self | \Closure $client): self
    {
        return $client instanceof self ? $client : new self('a closure', static fn (float $within): mixed => $client($within));
    }

    /** @internal for FakeLocks */
    public static function fake(Link $link): self
    {
        return new self('a fake', static fn (): Link => $link);
    }

    /** @internal makes the connection within this many seconds, in a cluster to this address */
    public function open(float $within, string $address = ''): Link
    {
        // Only a warning says why a certificate is not trusted.
        $said = '';
        set_error_handler(static function (int $level, string $text) use (&$said): bool {
            $said .= "; $text";

            return true;
        }, E_WARNING);
        try {
            $made = ($this->open)($within, $address);

            return match (true) {
                $made instanceof Link => $made,
                $made instanceof self => $made->open($within),
                $made instanceof \Redis => new PhpRedisLink($made),
                $made instanceof Client => new PredisLink($made),
                default => throw new \InvalidArgumentException('client must make a Redis, a Predis client or a Connect, not '
                    . get_debug_type($made) . ($made instanceof \RedisCluster ? ': see Locks::cluster()' : '')),
            };
        } catch (\RedisException | PredisException $error) {
            throw self::failed($this->name, $error->getMessage() . $said, $error);
        } finally {
            restore_error_handler();
        }
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

    /** Returns a failure to connect as an error of ours. An unknown host and a bad certificate do not pass. */
    private static function failed(string $name, string $text, \Throwable $previous): Refused|Unanswered
    {
        $text = (string) preg_replace('/^`\w+` failed: /', '', $text); // Predis
        $final = '/^(NOAUTH|WRONGPASS|NOPERM|ERR) |getaddrinfo.*(not known|does not resolve)|certificate|SSL operation failed/i';

        return preg_match($final, $text) ? ErrorReply::of($text, $previous) : new Unanswered("$name: $text", 0, $previous);
    }
}
