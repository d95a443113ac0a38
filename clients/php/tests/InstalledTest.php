<?php

declare(strict_types=1);

namespace Dlock\Tests;

use PHPUnit\Framework\TestCase;

/** Programs of their own, which have the package as it was installed, and nothing else: what a user does and looks at. */
final class InstalledTest extends TestCase
{
    private const BEGINS = <<<'PHP'
        <?php
        require getenv('DLOCK_INSTALLED');
        error_reporting(E_ALL);
        use Dlock\Connect, Dlock\Hold, Dlock\Locks;
        [$host, $port] = explode(':', getenv('DLOCK_AT'));
        $port = (int) $port;
        $key = getenv('DLOCK_KEY');
        PHP;

    private Server $server;
    private string $directory;

    protected function setUp(): void
    {
        $this->server = new Server();
        $this->directory = sys_get_temp_dir() . '/dlock-' . bin2hex(random_bytes(6));
        mkdir($this->directory);
    }

    protected function tearDown(): void
    {
        array_map(unlink(...), glob("$this->directory/*") ?: []);
        rmdir($this->directory);
    }

    /** @return array<string, string> */
    private function environment(?string $at = null): array
    {
        $here = getenv('DLOCK_AUTOLOAD') ?: __DIR__ . '/autoload.php';

        $at ??= Stage::addresses('DLOCK_SINGLE')[0];

        return ['DLOCK_INSTALLED' => $here, 'DLOCK_AT' => $at, 'DLOCK_KEY' => $this->server->key];
    }

    private function write(string $program, string $name = 'program.php'): string
    {
        file_put_contents("$this->directory/$name", self::BEGINS . "\n$program\n");

        return "$this->directory/$name";
    }

    /** What the program prints, if it ends well. */
    private function run_(string $program, ?string $at = null): string
    {
        $pipes = [];
        $command = [PHP_BINARY, '-d', 'display_errors=stderr', $this->write($program)];
        $process = proc_open($command, [1 => ['pipe', 'w'], 2 => ['pipe', 'w']], $pipes, null, $this->environment($at) + getenv());
        [$out, $errors] = [stream_get_contents($pipes[1]), stream_get_contents($pipes[2])];
        self::assertSame(0, proc_close($process), "$out\n$errors");
        self::assertSame('', $errors);

        return trim((string) $out);
    }

    public function testNoPasswordIsShown(): void
    {
        $name = trim($this->server->key, '{}');
        $this->server->ask('ACL', 'SETUSER', $name, 'on', '>hush-hush', '~*', '&*', '+@all');
        $shown = $this->run_(<<<PHP
            \$where = Connect::url("redis://$name:hush-hush@\$host:\$port");
            \$locks = new Locks(\$where);
            \$hold = \$locks->lock(\$key);
            var_dump(\$where, \$locks, \$hold);
            print_r(\$locks);
            print_r(Locks::cluster(["\$host:\$port"], fn (\$host, \$port) => \$where));
            try {
                \$locks->lock(\$key, 0.1);
            } catch (Dlock\Exception\LockTimeout \$error) {
                echo \$error;
            }
            \$hold->release();
            PHP);
        $this->server->ask('ACL', 'DELUSER', $name);
        self::assertStringContainsString($this->server->key, $shown);
        self::assertStringNotContainsString('hush-hush', $shown);
    }

    /** A try is one attempt: what the server says no with comes at once, in its words. */
    public function testATryIsOneAttempt(): void
    {
        [$primary, $replica] = Stage::addresses('DLOCK_PAIR');
        if (Stage::connect($primary)->rawCommand('ROLE')[0] !== 'master') {
            $replica = $primary;
        }
        $program = <<<'PHP'
            $locks = new Locks(Connect::url("redis://$host:$port"));
            $least = INF;
            for ($i = 0; $i < 20 && $least >= 250; ++$i) { // the machine may be busy
                $began = hrtime(true);
                try {
                    $locks->tryLock($key);
                    echo 'taken ';
                } catch (Dlock\Exception\DlockException $error) {
                    $least = min($least, (hrtime(true) - $began) / 1e6);
                }
            }
            echo $least < 250 ? 'at once: ' : "$least ms: ", $error->getMessage();
            PHP;
        self::assertMatchesRegularExpression('/^at once: .*refused/', $this->run_($program, '127.0.0.1:1'));
        self::assertMatchesRegularExpression('/^at once: READONLY/', $this->run_($program, $replica));
    }

    /** Sentinels name the primary. */
    public function testASentinel(): void
    {
        [$primary, $other] = Stage::addresses('DLOCK_PAIR');
        if (Stage::connect($primary)->rawCommand('ROLE')[0] !== 'master') {
            $primary = $other;
        }
        [$host, $port] = explode(':', $primary);
        $at = Stage::control('port');
        file_put_contents("$this->directory/sentinel.conf", "port $at\nbind 127.0.0.1\ndir $this->directory\n"
            . "sentinel monitor pair $host $port 1\nsentinel down-after-milliseconds pair 600000\n");
        $nothing = ['file', '/dev/null', 'w'];
        $process = proc_open(['redis-server', "$this->directory/sentinel.conf", '--sentinel'], [1 => $nothing, 2 => $nothing], $pipes);
        try {
            Stage::until(static fn () => @fsockopen('127.0.0.1', (int) $at), 'there is a Sentinel');
            self::assertSame('held', $this->run_(<<<'PHP'
                $locks = new Locks(Connect::sentinel(['127.0.0.1:1', "$host:$port"], 'pair'));
                $hold = $locks->lock($key, timeout: 5);
                echo $hold->lost() ? 'lost' : 'held';
                $hold->release();
                PHP, "127.0.0.1:$at"));
        } finally {
            proc_terminate($process, SIGKILL);
            proc_close($process);
        }
    }

    /** A connect that hangs ends with the time for a reply, and the next one asks again where to go. */
    public function testAConnectThatHangsIsNotWaitedFor(): void
    {
        $hangs = stream_socket_server('tcp://127.0.0.1:0'); // it accepts, and never answers
        $program = <<<'PHP'
            $asked = 0;
            $hung = getenv('DLOCK_HUNG');
            $locks = new Locks(function () use (&$asked, $hung, $host, $port) {
                return Connect::url(++$asked === 1 ? "redis://u:p@$hung" : "redis://$host:$port");
            }, replyTimeout: 1.0);
            $began = microtime(true);
            $locks->lock($key)->release();
            echo microtime(true) - $began < 6 ? 'in time' : 'late';
            PHP;
        putenv('DLOCK_HUNG=' . stream_socket_get_name($hangs, false));
        self::assertSame('in time', $this->run_($program));
    }

    /** The reason of a loss is the server's. */
    public function testARefusedKeepIsTheReason(): void
    {
        $name = trim($this->server->key, '{}');
        $this->server->ask('ACL', 'SETUSER', $name, 'on', '>word', '~*', '&*', '+@all', '-dlock.renew');
        $shown = $this->run_(<<<PHP
            \$locks = new Locks(Connect::url("redis://$name:word@\$host:\$port"), lease: 1.5);
            \$hold = \$locks->lock(\$key);
            while (!\$hold->lost()) {
                usleep(20_000);
            }
            echo \$hold->reason();
            PHP);
        self::assertMatchesRegularExpression('/^nobody has confirmed it before its end: NOPERM /', $shown);
        $this->server->awaitGone();
        $this->server->ask('ACL', 'DELUSER', $name);
    }

    /** An old name works for one version, with a warning. */
    public function testOldNames(): void
    {
        self::assertSame('1: the option owner is called actor now, and locks are not re-entered', $this->run_(<<<'PHP'
            $said = [];
            set_error_handler(function (int $level, string $text) use (&$said): bool {
                $said[] = $text;
                return $level === E_USER_DEPRECATED;
            });
            $locks = new Locks(Connect::url("redis://$host:$port"), lease: 2.0);
            $locks->lock($key, owner: 'me')->release();
            echo count($said), str_replace('dlock/redis', '', $said[0]);
            PHP));
    }

    /** The first program of the page as it is printed. Its server is the one at 6379. */
    public function testTheProgramOfThePage(): void
    {
        preg_match('/```php\n(require .*?)```/s', (string) file_get_contents(__DIR__ . '/../README.md'), $program);
        $address = Stage::addresses('DLOCK_SINGLE')[0];
        mkdir("$this->directory/vendor");
        file_put_contents("$this->directory/vendor/autoload.php", "<?php require getenv('DLOCK_INSTALLED');");
        $text = str_replace(['127.0.0.1:6379', "'stock']"], [$address, "'{$this->server->key}']"], $program[1]);
        file_put_contents("$this->directory/page.php", "<?php\n$text");
        $process = proc_open(
            [PHP_BINARY, '-d', 'display_errors=1', 'page.php'],
            [1 => ['pipe', 'w']],
            $pipes,
            $this->directory,
            $this->environment() + getenv(),
        );
        self::assertMatchesRegularExpression('/^\d+$/', trim((string) stream_get_contents($pipes[1])));
        self::assertSame(0, proc_close($process));
        unlink("$this->directory/vendor/autoload.php");
        rmdir("$this->directory/vendor");
        self::assertSame('41', $this->server->ask('GET', "{$this->server->key}:left"));
        $this->server->awaitGone();
    }

    /** If only its token is kept, the client reports the hold lost at once. Nobody else has the lock before its lease has ended. */
    public function testAForgottenHoldIsTold(): void
    {
        self::assertSame('lost: forgotten, taken, free', $this->run_(<<<'PHP'
            $observer = new class extends Dlock\Observer {
                public function lost(string $key, string $reason): void
                {
                    echo "lost: $reason";
                }
            };
            $locks = new Locks(Connect::url("redis://$host:$port"), lease: 2.0, observer: $observer);
            $token = $locks->lock($key)->token;
            echo $locks->tryLock($key) === null ? ', taken' : ', free';
            $locks->lock($key, timeout: 30)->release();
            echo ', free';
            PHP));
    }

    /** A full server is an error that passes: the wait continues. */
    public function testMaxClientsPasses(): void
    {
        $port = Stage::control('port');
        $nothing = ['file', '/dev/null', 'w'];
        $command = ['redis-server', '--port', $port, '--bind', '127.0.0.1', '--save', '', '--maxclients', '1'];
        $process = proc_open($command, [1 => $nothing, 2 => $nothing], $pipes);
        try {
            $full = Stage::until(static fn () => @fsockopen('127.0.0.1', (int) $port), 'it is there');
            fwrite($full, "PING\r\n");
            fgets($full);
            self::assertStringContainsString('max number of clients', $this->run_(<<<'PHP'
                $locks = new Locks(Connect::url("redis://$host:$port"));
                try {
                    $locks->lock($key, 0.5);
                } catch (Dlock\Exception\LockTimeout $error) {
                    echo $error->getPrevious()->getMessage();
                }
                PHP, "127.0.0.1:$port"));
        } finally {
            proc_terminate($process, SIGKILL);
            proc_close($process);
        }
    }
}
