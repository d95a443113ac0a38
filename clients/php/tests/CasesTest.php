<?php

declare(strict_types=1);

namespace Dlock\Tests;

use PHPUnit\Framework\TestCase;

/** Runs the cases that all languages have (../../cases), as far as a process with one connection has them. */
final class CasesTest extends TestCase
{
    /** Steps that there is nothing for: see ../../README.md. */
    private const WITHOUT = [
        'no_channel' => ['logged'],
        'after_close' => ['other', 'start', 'queued', 'joined'],
    ];

    /** The first takes 400 s, one after the other: LocksTest has two hundred. The others need two threads of one client. */
    public const NONE = [
        'two_thousand_holds_at_200_ms', 'closed_without_a_channel', 'a_turn_takes_three_commands', 'sixty_forgotten_at_200_ms',
    ];

    /** By Predis too: what a library has a part in. Debian's knows no users. */
    private const BY_PREDIS = [
        'closed_try', 'silent_path', 'slow_path', 'cut_and_kept', 'cut_wait',
        'first_come_first_served', 'a_try_takes_no_place', 'hold_over_a_slot_move', 'no_write_after_the_loss',
    ];

    /** @return array<string, array<string, mixed>> */
    public static function cases(): array
    {
        $cases = json_decode((string) file_get_contents(__DIR__ . '/../../cases/cases.json'), true, 512, JSON_THROW_ON_ERROR);

        return array_column($cases, null, 'name');
    }

    /**
     * Those of this process: `DLOCK_PART` is `frozen-single` or the like (these servers stand still, or have other settings: nobody
     * else may need them meanwhile), or `1/3` of the rest.
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
            if (in_array($name, self::NONE, true)) {
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
            static fn (array $step) => !in_array($step['do'], $without, true),
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
