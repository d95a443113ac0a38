<?php

// A program of its own: one connection, and one thing at a time. It reads commands and writes answers as lines of JSON.

declare(strict_types=1);

namespace Dlock\Tests;

use Dlock\Exception\Deadlock;
use Dlock\Exception\DlockException;
use Dlock\Exception\Fenced;
use Dlock\Exception\LockTimeout;
use Dlock\Exception\NotHeld;
use Dlock\Exception\Refused;
use Dlock\Exception\Replaced;
use Dlock\Hold;
use Dlock\Locks;

require __DIR__ . '/bootstrap.php';

$say = static function (array $line): void {
    fwrite(STDOUT, json_encode($line, JSON_INVALID_UTF8_SUBSTITUTE) . "\n");
};
$logger = new class ($say) extends \Psr\Log\AbstractLogger {
    public function __construct(private readonly \Closure $say)
    {
    }

    public function log($level, $message, array $context = []): void
    {
        ($this->say)(['event' => 'log', 'level' => $level, 'text' => $message . ' ' . json_encode($context)]);
    }
};
$my = new class {
    /** @var array<int, Hold> */
    public array $holds = [];
    public int $next = 0;
    public ?Locks $locks = null;
};
$judge = static function (callable $work) use ($my): array {
    $began = microtime(true);
    try {
        $hold = $work();
        $got = ['got' => 'none'];
        if ($hold instanceof Hold) {
            $my->holds[$my->next] = $hold;
            $got = ['got' => 'hold', 'id' => $my->next++, 'token' => $hold->token, 'owner' => $hold->owner];
        }
    } catch (LockTimeout $error) {
        $got = ['got' => $error->getPrevious() === null ? 'none' : 'timeout', 'cause' => $error->getPrevious() !== null];
    } catch (NotHeld $error) {
        $got = ['got' => 'not held'];
    } catch (Fenced | Replaced | Deadlock $error) {
        $got = ['got' => strtolower((new \ReflectionClass($error))->getShortName())];
    } catch (Refused $error) {
        $got = ['got' => $error->word() === 'NOACK' ? 'unconfirmed' : 'refusal'];
    } catch (DlockException $error) {
        $got = ['got' => 'failure'];
    } catch (Interrupted $error) {
        $got = ['got' => 'interrupted'];
    } catch (\InvalidArgumentException | \TypeError $error) {
        $got = ['got' => 'bad'];
    }

    return $got + (isset($error) ? ['text' => $error->getMessage(), 'type' => $error::class] : [])
        + ['seconds' => microtime(true) - $began];
};
$own = getmypid();
$lost = static fn (int $id) => static function (Hold $hold) use ($say, $id, $own): void {
    getmypid() === $own && $say(['event' => 'lost', 'id' => $id, 'text' => $hold->reason()]);
};
$does = [
    'client' => static function (array $how) use ($my, $logger): array {
        return ['got' => ($my->locks = Kinds::locks(...$how, logger: $logger)) ? 'client' : ''];
    },
    'lock' => static fn (array $how) => $judge(static function () use ($how, $my, $lost) {
        $atOnce = ($how['timeout'] ?? null) === 0;
        $timeout = ($how['timeout'] ?? null) === 'NaN' ? NAN : ($how['timeout'] ?? null);
        $told = $lost($my->next);

        return $my->locks->{$atOnce ? 'tryLock' : 'lock'}(...[...$how, 'timeout' => $timeout, 'onLost' => $told]);
    }),
    'release' => static fn (array $how) => $judge(static function () use ($how, $my) {
        isset($how['after']) ? $my->holds[$how['id']]->releaseAfter($how['after']) : $my->holds[$how['id']]->release();
    }),
    'block' => static function (array $how) use ($my, $judge): array {
        $left = $judge(static function () use ($how, $my, $judge, &$again): void {
            $my->locks->with($how['key'], static function (Hold $hold) use ($judge, &$again): void {
                $hold->release();
                $again = $judge($hold->release(...))['got'];
            });
        });

        return [...$left, 'again' => $again];
    },
    'fork' => static function (array $how) use ($my, $judge): array {
        [$ours, $childs] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        if (pcntl_fork() === 0) {
            $seen = [$judge(static fn () => $my->locks->lock($how['key'], 5)->release())['got']];
            array_unshift($seen, $judge(static fn () => $my->holds[$how['id']]->release())['got']);
            array_unshift($seen, $my->holds[$how['id']]->lost());
            fwrite($childs, json_encode($seen) . "\n");
            posix_kill((int) getmypid(), SIGKILL); // or it would read the parent's orders
        }
        pcntl_wait($status);

        return ['got' => 'none', 'seen' => json_decode((string) fgets($ours), true)];
    },
    'early' => static fn (array $how) => $judge(static function () use ($how, $my) {
        $later = static function (): \Generator {
            yield 1;
        };
        $promise = new class () {
            public function then(): void
            {
            }
        };
        $work = ['generator' => $later, 'gives a generator' => static fn () => $later(), 'promise' => static fn () => $promise];
        $my->locks->with($how['key'], $work[$how['work']], timeout: 10);
    }),
    'forget' => static function (array $how) use ($my): array {
        unset($my->holds[$how['id']]);

        return ['got' => 'forgotten'];
    },
    'guard' => static fn (array $how) => $judge(static function () use ($how, $my) {
        $my->holds[$how['id']]->guard(...$how['words']);
    }),
    'end' => static fn () => $judge(static fn () => $my->locks->close()),
    'cycles' => static fn (array $how) => $judge(static function () use ($how, $my) {
        for ($i = 0; $i < $how['count']; ++$i) {
            $my->locks->lock($how['key'])->release();
        }
    }),
    'count' => static fn (array $how) => $judge(static function () use ($how, $my) {
        $data = (new Server($how['place']))->node($how['key']);
        for ($i = 0; $i < $how['count']; ++$i) {
            $hold = $my->locks->lock($how['key']);
            $data->set($how['key'] . ':count', (int) $data->get($how['key'] . ':count') + 1);
            $hold->release();
        }
    }),
    'lead' => static fn (array $how) => $judge(static function () use ($how, $my, $say) {
        // Writes its term, guarded, for as long as it leads; and says so.
        $election = new \Dlock\Election($my->locks, $how['name'], $how['id']);
        $election->campaign();
        $say(['event' => 'leads', 'term' => $election->term()]);
        while ($election->isLeader()) {
            try {
                $election->guard('RPUSH', $how['name'] . ':terms', $election->term());
            } catch (DlockException) {
                // Not written.
            }
            usleep(10_000);
        }
        $say(['event' => 'leads no more']);
    }),
];

/** What Ctrl-C is for a person. */
final class Interrupted extends \RuntimeException
{
}
pcntl_async_signals(true);
pcntl_signal(SIGUSR1, static fn () => throw new Interrupted());

stream_set_blocking(STDIN, false);
for ($rest = '';;) {
    $read = [STDIN];
    $none = null;
    if (@stream_select($read, $none, $none, 0, 20_000)) {
        $data = fread(STDIN, 65536);
        if (($data === '' || $data === false) && feof(STDIN)) {
            exit;
        }
        $rest .= $data;
        while (($end = strpos($rest, "\n")) !== false) {
            $order = json_decode(substr($rest, 0, $end), true);
            $rest = substr($rest, $end + 1);
            $do = $order['do'];
            unset($order['do']);
            $say($does[$do]($order));
        }
    }
    if ($my->locks !== null) {
        try {
            $my->locks->keep();
        } catch (DlockException) {
            // Closed.
        }
    }
}
