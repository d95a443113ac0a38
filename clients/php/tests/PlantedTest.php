<?php

declare(strict_types=1);

namespace Dlock\Tests;

use PHPUnit\Framework\TestCase;

/** Each case fails on a client with a fault: a case that nothing fails proves nothing. Run with DLOCK_PLANTED=1. */
final class PlantedTest extends TestCase
{
    private const NO_BOUND = ['Locks.php', '$queueGrace, $replyTimeout, $clockMargin);', '$queueGrace, 20.0, $clockMargin);'];
    private const ALL_PASSES = ['Exception/Refused.php', 'return in_array(', 'return true || in_array('];
    private const ONE_PERMIT = ['Request.php', "\$this->permits > 1 ? ['PERMITS'", "false ? ['PERMITS'"];
    private const RENEWS_NOTHING = ['Core.php', '&& !$this->renew($hold, $end)', '&& false'];
    private const ENDS_THE_WAIT = ['Core.php', '$this->servers->pause($end);', 'throw $error;'];
    private const ENDS_WITH_THE_CONNECTION = [
        'Servers.php', '$isReadOnly = $error',
        "if (\$error instanceof Unanswered) throw new Refused('ERR the connection has ended'); \$isReadOnly = \$error",
    ];
    private const LEAVES_NOTHING = ['Core.php', 'if ($grant === null && $timeout !== 0.0) {', 'if (false) {'];
    private const TRIES_FOR_LONG = ['Core.php', 'if ($timeout === 0.0 || !$error->passes()', 'if (!$error->passes()'];
    private const HEARS_NO_LOSS = ['Core.php', "\$this->lose(\$hold, 'not held any more');", ''];
    private const BELIEVES_FOR_EVER = ['Core.php', '&& $hold->until() <= Clock::now())', '&& false)'];
    private const FORGETS_QUIETLY = [
        'Core.php', '$this->later($hold->request, [$hold->request->untie($hold->token, $hold->request->lease)]);', '',
    ];
    /** The client as it is needs longer than the others. */
    private const LASTS = [
        'a_thousand_cycles', 'asked_again_after_a_lost_reply', 'dropped', 'forgotten_and_left_to_its_lease',
        'a_late_request_is_given_back', 'released_while_the_server_is_away',
    ];

    /** @return iterable<string, array{string, array{string, string, string}}> the case; the file, what stands there, the fault */
    public static function faults(): iterable
    {
        $faults = [
            'closed_try' => ['Core.php', '$grant = $this->wait($request, $timeout, $began, $isUnheard);', '$grant = null;'],
            'closed_two_seconds' => ['Core.php', '{$why->getMessage()}", 0, $why)', 'it is taken")'],
            'closed_without_bound' => ['Core.php', 'still waiting', 'silent'],
            'hung_try' => self::NO_BOUND,
            'hung_later' => self::NO_BOUND,
            'silent_path' => self::BELIEVES_FOR_EVER,
            'slow_path' => ['Locks.php', '$queueGrace, $replyTimeout, $clockMargin);', '$queueGrace, 0.15, $clockMargin);'],
            'wrong_password' => self::ALL_PASSES,
            'no_right_to_the_command' => self::ALL_PASSES,
            'no_module' => self::ALL_PASSES,
            'two_dead_links_of_five' => self::RENEWS_NOTHING,
            'one_hung_node_of_three' => ['Core.php', '$hold->failed($sent, $error);', 'throw $error;'],
            'forced' => self::HEARS_NO_LOSS,
            'deleted' => self::HEARS_NO_LOSS,
            'expired' => self::HEARS_NO_LOSS,
            'cut_and_kept' => self::RENEWS_NOTHING,
            'hold_over_a_failover' => self::RENEWS_NOTHING,
            'hold_over_a_switch' => self::RENEWS_NOTHING,
            'hold_over_a_slot_move' => self::RENEWS_NOTHING,
            'a_hold_over_a_crash' => self::RENEWS_NOTHING,
            'an_ephemeral_hold_over_a_failover_elsewhere' => self::RENEWS_NOTHING,
            'cut_wait' => self::ENDS_WITH_THE_CONNECTION,
            'said_twice' => self::ENDS_WITH_THE_CONNECTION,
            'wait_over_a_failover' => self::ENDS_THE_WAIT,
            'wait_over_a_switch' => self::ENDS_THE_WAIT,
            'wait_over_a_crash' => self::ENDS_THE_WAIT,
            'wait_over_a_slot_move' => [
                'Servers.php',
                '$isRedirected = in_array(',
                "\$error = \$error->word() === 'MOVED' ? new Refused('ERR it has moved') : \$error;\n\$isRedirected = in_array(",
            ],
            'first_come_first_served' => ['Core.php', '$request->take($slice), ', '$request->take(null), '],
            'a_try_takes_no_place' => ['Core.php', '$slice = $timeout === 0.0 ? null', '$slice = $timeout === 0.0 ? 0.001'],
            'a_time_out_in_the_queue' => self::LEAVES_NOTHING,
            'an_ephemeral_hold_ends_with_its_connection' => ['Request.php', "\$this->ephemeral ? ['EPHEMERAL']", "false ? ['EPHEMERAL']"],
            'readers_and_a_writer' => ['Request.php', "\$this->shared ? ['SHARED']", "false ? ['SHARED']"],
            'a_semaphore_of_three' => ['Request.php', "\$this->limit !== null ? ['LIMIT'", "false ? ['LIMIT'"],
            'an_actor_that_waits_for_itself' => ['Core.php', '$timeout !== 0.0 && array_filter', 'false && array_filter'],
            'replaced' => self::ALL_PASSES,
            'no_write_after_the_loss' => ['Hold.php', "['DLOCK.GUARD', \$this->key, \$this->token, \$command,", '[$command,'],
            'a_refused_renewal_is_the_reason' => [
                'Hold.php', '[$this->askedAt, $this->failure] = [$sent, $error->getMessage()];', '$this->askedAt = $sent;',
            ],
            'no_right_to_release' => ['Core.php', '$isForbidden ? $request->untie($token, $request->lease) : $words', '$words'],
            'no_right_to_ping' => [
                'Core.php', '$slice = $timeout === 0.0', '$this->servers->ask($request->key, ["PING"], Clock::now() + 3); $slice = $timeout === 0.0',
            ],
            'no_time_out_is_too_long' => ['Core.php', '($timeout > 0 ? $timeout :', '($timeout > 0 ? fmod($timeout, 0.001) :'],
            'after_close' => ['Servers.php', "if (\$this->closed) {\n            throw", "if (false) {\n            throw"],
            'a_thousand_cycles' => [
                'Servers.php',
                '$link = $this->links[$address] ??= $this->open($address, $left());',
                'static $kept = []; $kept[] = $link = $this->links[$address] = $this->open($address, $left());',
            ],
            'dropped' => self::FORGETS_QUIETLY,
            'forgotten_and_left_to_its_lease' => self::FORGETS_QUIETLY,
            'the_replica_frozen' => ['Exception/Refused.php', "'NOACK', ", ''],
            'a_hold_that_may_not_last' => [
                'Core.php',
                '$this->giveUp($hold, $hold->why());',
                'foreach ($holds as $hold) { $this->giveUp($hold, $hold->why()); }',
            ],
            'a_short_hold_beside_a_long_one' => self::RENEWS_NOTHING,
            'sixty_forgotten_at_200_ms' => self::RENEWS_NOTHING,
            'a_time_out_leaves_no_place' => self::LEAVES_NOTHING,
            'several_permits' => self::ONE_PERMIT,
            'a_large_request_is_not_overtaken' => self::ONE_PERMIT,
            'permits_outlast_a_cut' => self::ONE_PERMIT,
            'a_try_at_a_closed_port' => self::TRIES_FOR_LONG,
            'a_try_at_a_replica' => self::TRIES_FOR_LONG,
            'a_try_without_replicas' => self::TRIES_FOR_LONG,
            'a_try_at_a_busy_server' => self::TRIES_FOR_LONG,
            'a_try_at_a_loading_server' => self::TRIES_FOR_LONG,
            'a_wait_at_a_loading_server' => ['Exception/Refused.php', "'LOADING', ", ''],
            'released_by_the_work_itself' => ['Hold.php', "if (!\$this->isReleased) {", 'if (true) {'],
            'a_wait_at_a_drained_server' => ['Exception/Refused.php', ", 'QUARANTINE'", ''],
            'a_hold_over_a_busy_server' => ['Exception/Refused.php', "'BUSY', ", ''],
            'asked_again_after_a_lost_reply' => ['Core.php', "return \$failure === null\n", "return true\n"],
            'bad_arguments' => ['Settings.php', 'if (!($value >= 0))', 'if (false)'],
            'late_commands_of_open_connections' => ['Servers.php', "\$this->disconnect(\$address);\n            if (\$isNew", 'if ($isNew'],
            'a_late_request_is_given_back' => ['Core.php', '...$release], $isUnheard);', '...$release]);'],
            'a_loss_is_given_back' => self::BELIEVES_FOR_EVER,
            'released_while_the_server_is_away' => ['Core.php', '$this->later($request, [$isForbidden', 'array_filter([$request, $isForbidden'],
            'released_during_a_failover' => ['Servers.php', '&& !$isReadOnly) {', ') {'],
            'a_free_lock_takes_two_commands' => ['Core.php', "return \$failure === null\n", "return false\n"],
            'a_fork' => ['Servers.php', "if (\$this->process !== getmypid()) {", 'if (false) {'],
            'work_that_is_yet_to_be_done' => ['Locks.php', 'if ($result instanceof \Generator', 'if (false && $result instanceof \Generator'],
            'max_hold' => ['Hold.php', '($request->maxHold ?? INF)', 'INF'],
            'release_after' => ['Core.php', '$words = $after === null ?', '$words = true ?'],
        ];
        foreach ($faults as $case => $fault) {
            yield $case => [$case, $fault];
        }
    }

    public function testEveryCaseHasItsFault(): void
    {
        $planted = array_keys(iterator_to_array(self::faults()));
        $cases = array_diff(array_keys(CasesTest::cases()), array_keys(CasesTest::NONE));
        self::assertEqualsCanonicalizing($cases, $planted);
    }

    /**
     * @dataProvider faults
     *
     * @param array{string, string, string} $fault
     */
    public function testAPlantedFaultIsSeen(string $name, array $fault): void
    {
        [$file, $right, $wrong] = $fault;
        $planted = sys_get_temp_dir() . '/dlock-planted-' . bin2hex(random_bytes(4));
        exec('cp -r ' . escapeshellarg(__DIR__ . '/../src') . ' ' . escapeshellarg($planted));
        $text = (string) file_get_contents("$planted/$file");
        self::assertSame(1, substr_count($text, $right), "$file has it once");
        file_put_contents("$planted/$file", str_replace($right, $wrong, $text));
        $before = [getenv('PATIENCE'), getenv('DLOCK_LATE')];
        $patience = in_array($name, self::LASTS, true) ? 30 : 6;
        putenv("DLOCK_PLANT=$planted");
        putenv("PATIENCE=$patience");
        putenv('DLOCK_LATE=0.5');
        $runner = new Runner(CasesTest::cases()[$name]['at'] ?? 'single', 'phpredis');
        $seen = null;
        try {
            $runner->run(array_map(self::bounded(...), CasesTest::steps($name)));
        } catch (\Throwable $seen) {
            // As it should be.
        } finally {
            putenv('DLOCK_PLANT');
            putenv($before[0] === false ? 'PATIENCE' : "PATIENCE=$before[0]");
            putenv($before[1] === false ? 'DLOCK_LATE' : "DLOCK_LATE=$before[1]");
            $runner->finish();
            exec('rm -r ' . escapeshellarg($planted));
        }
        self::assertNotNull($seen, 'nobody has noticed');
        self::assertStringNotContainsString('worker has ended', $seen->getMessage());
    }

    /**
     * Gives a time-out to a wait that has none: the test must not wait for ever.
     *
     * @param array<string, mixed> $step
     *
     * @return array<string, mixed>
     */
    private static function bounded(array $step): array
    {
        $endless = $step['do'] === 'lock' && array_key_exists('timeout', $step) && $step['timeout'] === null;

        return $endless ? ['timeout' => 3] + $step : $step;
    }
}
