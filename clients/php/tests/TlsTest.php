<?php

declare(strict_types=1);

namespace Dlock\Tests;

use Dlock\Connect;
use Dlock\Exception\Refused;
use Dlock\Locks;
use PHPUnit\Framework\TestCase;

/** A server that is reached by TLS. */
final class TlsTest extends TestCase
{
    public function testTls(): void
    {
        $directory = sys_get_temp_dir() . '/dlock-' . bin2hex(random_bytes(6));
        mkdir($directory);
        [$certificate, $key, $both] = ["$directory/certificate", "$directory/key", "$directory/both"];
        exec('openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=test'
            . " -addext subjectAltName=IP:127.0.0.1 -keyout $key -out $certificate 2>/dev/null", result_code: $status);
        self::assertSame(0, $status);
        file_put_contents($both, file_get_contents($certificate) . file_get_contents($key));
        $command = [PHP_BINARY, __DIR__ . '/tls.php', $both, Stage::addresses('DLOCK_SINGLE')[0]];
        $process = proc_open($command, [1 => ['pipe', 'w']], $pipes);
        try {
            $url = 'rediss://' . trim((string) fgets($pipes[1]));
            $server = new Server();
            $locks = new Locks(Connect::url($url, ['cafile' => $certificate]));
            $server->ask('DLOCK.ACQUIRE', $server->key, 'other', '500');
            $hold = $locks->lock($server->key, timeout: Stage::patience());
            self::assertSame($hold->owner, $server->info()['holders'][0]['owner']);
            self::assertSame(1, $server->info()['holders'][0]['auto']);
            $hold->release();
            $server->awaitGone($server->key);
            // phpredis has its own way to say so.
            $locks = new Locks(static function (float $within) use ($url, $certificate): \Redis {
                ['host' => $host, 'port' => $port] = parse_url($url);
                $redis = new \Redis();
                $redis->connect("tls://$host", $port, $within, null, 0, $within, ['stream' => ['cafile' => $certificate]]);

                return $redis;
            });
            $locks->lock($server->key, timeout: Stage::patience())->release();
            // A client that does not trust the certificate fails at once: a retry would not help.
            $this->expectException(Refused::class);
            $this->expectExceptionMessageMatches('/certificate/');
            (new Locks(Connect::url($url)))->lock($server->key);
        } finally {
            proc_terminate($process, SIGKILL);
            proc_close($process);
            array_map(unlink(...), [$certificate, $key, $both]);
            rmdir($directory);
        }
    }
}
