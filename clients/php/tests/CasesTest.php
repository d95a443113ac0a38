<?php

declare(strict_types=1);

namespace Dlock\Tests;

use PHPUnit\Framework\TestCase;

/** Runs the cases that all languages have (../../cases), as far as a process with one connection has them. */
final class CasesTest extends TestCase
{
    /** Steps, by name or number, that there is nothing for: see clients/DESIGN.md. */
    private const WITHOUT = [
        'after_close' => ['other', 'start', 'queued', 'joined'],
        'a_refused_renewal_is_the_reason' => [4], // without the right to renew, a lock ends with its first lease
    ];

    private const SESSION = 'there is no session: a hold and a wait belong to the connection';
    private const THREADS = 'a process does one thing at a time';

    /** What such a process has not, or what the case looks for is gone. */
    public const NONE = [
        'two_thousand_holds_at_200_ms' => 'to take or to renew them one after the other would last 400 s: LocksTest has twenty',
        'a_turn_takes_three_commands' => self::THREADS,
        'no_right_to_renew' => 'a slice of a wait is short: its grant needs no confirmation',
        'two_that_wait_for_each_other' => 'no owner is used twice, and outside of sessions the search for deadlocks follows owners',
        'an_overflow_of_rows' => self::SESSION,
        'a_row_that_nobody_knows' => self::SESSION,
        'the_last_word' => self::SESSION,
        'a_late_word' => self::SESSION,
        'a_refused_session_is_the_reason' => self::SESSION . '; a_refused_renewal_is_the_reason has a refused RENEW',
        'two_actors_of_one_client' => self::THREADS,
        'many_of_one_slot' => 'a MACQUIRE that waits in slices would lose its place: many() takes one lock after the other',
    ];

    /** By Predis too: what a library has a part in. Debian's knows no users. */
    private const BY_PREDIS = [
        'closed_try', 'silent_path', 'slow_path', 'cut_and_kept', 'cut_wait',
        'first_come_first_served', 'a_try_takes_no_place', 'hold_over_a_slot_move', 'no_write_after_the_loss',
        'said_twice', 'late_commands_of_open_connections', 'released_while_the_server_is_away',
    ];

    /** @return array<string, array<string, mixed>> */
    public static function cases(): array
    {
        $read = static fn (string $file): array
            => json_decode((string) file_get_contents(__DIR__ . "/../../cases/$file"), true, 512, JSON_THROW_ON_ERROR);

        return array_column([...$read('cases.json'), ...$read('sessions.json')], null, 'name');
    }

    /**
     * Yields the cases of this process. `DLOCK_PART` is `frozen-single` or similar, or `1/3` of the rest. The cases of a frozen
     * part stall servers or change their settings: no other test may need these servers meanwhile.
     *
     * @return iterable<string, array{string, string}>
     */
    public static function all(): iterable
    {
        $part = getenv('DLOCK_PART') ?: '';
        $number = 0;
        foreach (self::named() as $case => $about) {
            $frozen = array_intersect(array_column(self::steps($about[0]), 'do'), ['freeze', 'fault', 'settings']) !== [];
            $frozen or ++$number;
            [$one, $of] = explode('/', "$part/0");
            $place = self::cases()[$about[0]]['at'] ?? 'single';
            if ($part === '' || ($frozen ? $part === "frozen-$place" : (int) $of > 0 && $number % (int) $of === (int) $one)) {
                yield $case => $about;
            }
        }
    }

    /** @return iterable<string, array{string, string}> */
    private static function named(): iterable
    {
        foreach (array_keys(self::cases()) as $name) {
            if (isset(self::NONE[$name])) {
                continue;
            }
            yield $name => [$name, 'phpredis'];
            if (in_array($name, self::BY_PREDIS, true)) {
                yield "$name by Predis" => [$name, 'predis'];
            }
        }
    }

    /** @return list<array<string, mixed>> */
    public static function steps(string $name): array
    {
        $without = self::WITHOUT[$name] ?? [];

        return array_values(array_filter(
            self::cases()[$name]['steps'],
            static fn (array $step, int $at) => !in_array($step['do'], $without, true) && !in_array($at, $without, true),
            ARRAY_FILTER_USE_BOTH,
        ));
    }

    /** @dataProvider all */
    public function testCase(string $name, string $library): void
    {
        $runner = new Runner(self::cases()[$name]['at'] ?? 'single', $library);
        try {
            $runner->run(self::steps($name));
        } finally {
            $runner->finish();
        }
        $this->addToAssertionCount(1);
    }
}
