<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Dlock\Exception\Refused;
use Dlock\Exception\Unanswered;

/** Ways to connect by phpredis, for Locks. Each is called again when a connection has ended. */
final class Connect
{
    /**
     * To `redis://[user:password@]host[:port][/database]`, or `rediss://…` for TLS.
     *
     * @param array<string, mixed> $tls options of PHP's stream context for `ssl`
     *
     * @return \Closure(float): \Redis
     */
    public static function url(#[\SensitiveParameter] string $url, array $tls = []): \Closure
    {
        $parts = parse_url($url);
        if (!isset($parts['host']) || !in_array($parts['scheme'] ?? '', ['redis', 'rediss'], true)) {
            throw new \InvalidArgumentException('url must be redis://host or rediss://host');
        }
        $host = ($parts['scheme'] === 'rediss' ? 'tls://' : '') . $parts['host'];
        $auth = array_map(rawurldecode(...), array_filter([$parts['user'] ?? '', $parts['pass'] ?? ''], strlen(...)));
        $database = (int) ltrim($parts['path'] ?? '', '/');

        return static fn (float $bound): \Redis => self::to(
            $host,
            $parts['port'] ?? 6379,
            $bound,
            array_values($auth),
            $database,
            $tls,
        );
    }

    /**
     * To the primary of these, whichever it is by then: a primary and its replicas.
     *
     * @param list<\Closure(float): \Redis> $ways one for each
     *
     * @return \Closure(float): \Redis
     */
    public static function primaryOf(array $ways): \Closure
    {
        if ($ways === []) {
            throw new \InvalidArgumentException('ways must not be empty');
        }

        return static function (float $bound) use ($ways): \Redis {
            $error = null;
            foreach ($ways as $way) {
                try {
                    $redis = $way($bound / count($ways));
                    if (($redis->rawCommand('ROLE')[0] ?? '') === 'master') {
                        $redis->setOption(\Redis::OPT_READ_TIMEOUT, $bound);

                        return $redis;
                    }
                } catch (\RedisException | Unanswered $error) {
                    // The next one may be it.
                }
            }
            throw new Unanswered('none of them is the primary now', 0, $error);
        };
    }

    /**
     * @param list<string>         $auth the password, or the user and the password
     * @param array<string, mixed> $tls
     */
    public static function to(
        string $host,
        int $port,
        float $bound,
        #[\SensitiveParameter] array $auth = [],
        int $database = 0,
        array $tls = [],
    ): \Redis {
        $redis = new \Redis();
        $said = [];
        set_error_handler(static function (int $level, string $text) use (&$said): bool {
            $said[] = $text; // what it cannot do it says as warnings, and mostly as an exception, too

            return true;
        });
        try {
            if (!$redis->connect($host, $port, $bound, null, 0, $bound, $tls === [] ? [] : ['stream' => $tls])) {
                throw new \RedisException(implode('; ', $said) ?: 'no connection');
            }
            if ($auth !== [] && !$redis->auth(count($auth) === 1 ? $auth[0] : $auth)) {
                throw Refused::by($redis->getLastError() ?? 'WRONGPASS');
            }
            if ($database !== 0 && !$redis->select($database)) {
                throw Refused::by($redis->getLastError() ?? 'ERR no such database');
            }
        } catch (\RedisException $error) {
            throw self::failed($error);
        } finally {
            restore_error_handler();
        }

        return $redis;
    }

    /**
     * A failure of a connection that is being opened, as an error of ours.
     *
     * @internal
     */
    public static function failed(\RedisException $error): Refused | Unanswered
    {
        $text = $error->getMessage();
        // An unknown host and a certificate that is none do not become better by waiting.
        $final = '/^(NOAUTH|WRONGPASS|NOPERM|ERR) |getaddrinfo.*not known|certificate|SSL operation failed/i';

        return preg_match($final, $text) ? new Refused($text, $error) : new Unanswered($text, 0, $error);
    }
}
