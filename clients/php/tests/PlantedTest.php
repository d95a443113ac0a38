<?php

declare(strict_types=1);

namespace Dlock\Tests;

use PHPUnit\Framework\TestCase;

/** Each case fails on a client with a fault: a case that nothing fails proves nothing. Run with DLOCK_PLANTED=1. */
final class PlantedTest extends TestCase
{
    private const NO_BOUND = ['Locks.php', "Settings::renamed('bound', \$bound, 'replyTimeout', \$replyTimeout)", '20.0'];
    private const ALL_PASSES = ['Exception/Refused.php', 'return in_array(', 'return true || in_array('];
    private const ONE_PERMIT = ['Request.php', "\$this->permits > 1 ? ['PERMITS'", "false ? ['PERMITS'"];
    private const RENEWS_NOTHING = ['Core.php', 'array_push($lost, ...$this->renewAll($node, $until));', ''];
    private const ENDS_THE_WAIT = ['Core.php', '$again ? Clock::sleep(0.02) : $this->servers->mend($error, $end);', 'throw $error;'];
    private const LEAVES_NOTHING = ['Core.php', "if (\$slice <= 0) {\n                \$this->leave(\$request);\n", "if (\$slice <= 0) {\n"];
    private const TRIES_FOR_LONG = ['Core.php', 'if ($timeout === 0.0 && !$again) {', 'if (false) {'];
    private const KEEPS_THE_NAME = ['Locks.php', '$named . $this->core->alias($key, $named)', '$named'];
    private const LASTS = [
        'a_thousand_cycles', 'a_late_release_ends_no_later_hold', 'a_late_release_of_a_lost_hold', 'asked_again_after_a_lost_reply',
        'taken_again_after_a_loss',
    ];
    private const HEARS_NO_LOSS = ['Core.php', 'foreach ($ended ?? [] as', '$ended = []; $count = count($known); foreach ([] as'];

    /** @return iterable<string, array{string, array{string, string, string}}> the case; the file, what stands there, the fault */
    public static function faults(): iterable
    {
        $faults = [
            'closed_try' => ['Core.php', '$granted = $this->taken($request, $timeout, $began) ? $request : null', '$granted = null'],
            'closed_two_seconds' => ['Core.php', '{$why->getMessage()}", 0, $why)', 'it is taken")'],
            'closed_without_bound' => ['Core.php', 'still waiting', 'silent'],
            'hung_try' => self::NO_BOUND,
            'hung_later' => self::NO_BOUND,
            'silent_path' => ['Core.php', 'if ($request->until <= Clock::now())', 'if (false)'],
            'slow_path' => ['Locks.php', "Settings::renamed('bound', \$bound, 'replyTimeout', \$replyTimeout)", '0.15'],
            'wrong_password' => self::ALL_PASSES,
            'no_right_to_the_command' => self::ALL_PASSES,
            'no_module' => self::ALL_PASSES,
            'no_channel' => ['Request.php', "['BLOCK', Settings::ms(\$slice),", "['BLOCK', Settings::ms(\$slice), 'NOTIFY', 'dlock:x',"],
            'two_dead_links_of_five' => ['Core.php', '...$this->look($node, $until), ', ''],
            'one_hung_node_of_three' => ['Core.php', '$this->servers->refresh(Clock::now() + 1); // what', 'throw $error; // what'],
            'forced' => self::HEARS_NO_LOSS,
            'deleted' => self::HEARS_NO_LOSS,
            'expired' => self::HEARS_NO_LOSS,
            'cut_and_kept' => self::RENEWS_NOTHING,
            'hold_over_a_failover' => self::RENEWS_NOTHING,
            'hold_over_a_switch' => self::RENEWS_NOTHING,
            'hold_over_a_slot_move' => self::RENEWS_NOTHING,
            'an_ephemeral_hold_over_a_failover_elsewhere' => self::RENEWS_NOTHING,
            'cut_wait' => self::ENDS_THE_WAIT,
            'wait_over_a_failover' => self::ENDS_THE_WAIT,
            'wait_over_a_switch' => self::ENDS_THE_WAIT,
            'wait_over_a_crash' => self::ENDS_THE_WAIT,
            'wait_over_a_slot_move' => [
                'Servers.php', "if (\$hops === 4) {\n                    throw \$error;", "if (true) {\n                    throw new Refused('ERR it has moved');",
            ],
            'first_come_first_served' => ['Core.php', '$request->wait($slice), min(', '$request->take(true), min('],
            'a_try_takes_no_place' => ['Core.php', '$request->take($atOnce), ', '$request->take(false), '],
            'a_time_out_in_the_queue' => self::LEAVES_NOTHING,
            'an_ephemeral_hold_ends_with_its_connection' => ['Request.php', "\$this->ephemeral ? ['EPHEMERAL']", "false ? ['EPHEMERAL']"],
            'readers_and_a_writer' => ['Request.php', "\$this->shared ? ['SHARED']", "false ? ['SHARED']"],
            'a_semaphore_of_three' => ['Request.php', "\$this->limit !== null ? ['LIMIT'", "false ? ['LIMIT'"],
            'an_inner_hold_ends_no_outer_one' => ['Core.php', 'if (!$request->isHad()) { // it was the last', 'if (true) { // it was the last'],
            'two_that_wait_for_each_other' => self::ALL_PASSES,
            'replaced' => self::ALL_PASSES,
            'a_name_is_of_one_client' => ['Request.php', "'/' . getmypid() . \"/\$name\"", "'/' . strtok(\"/\$name\", '#')"],
            'no_write_after_the_loss' => ['Hold.php', "['DLOCK.GUARD', \$this->key, \$this->token, \$command,", '[$command,'],
            'a_refused_keep_is_the_reason' => ['Core.php', '$node->refusal = $error->getMessage();', ''],
            'no_right_to_release' => ['Core.php', 'if ($node->surplus > 1) {', 'if ($node->surplus > 1000) {'],
            'no_right_to_renew' => self::ALL_PASSES,
            'no_right_to_ping' => [
                'Core.php', '$request->asked = true;', '$request->asked = true; $this->servers->call($request->key, ["PING"], $until());',
            ],
            'a_re_entry_sends_nothing' => ['Core.php', 'if ($request->tracked && ($held', 'if (false && ($held'],
            'no_time_out_is_too_long' => ['Core.php', '($timeout > 0 ? $timeout :', '($timeout > 0 ? fmod($timeout, 0.001) :'],
            'after_close' => ['Servers.php', "if (\$this->closed) {\n            throw", "if (false) {\n            throw"],
            'a_thousand_cycles' => [
                'Servers.php',
                '$node->connection ??= Connection::open($node->where, $left());',
                'static $kept = []; $kept[] = $node->connection; $node->connection = Connection::open($node->where, $left());',
            ],
            'dropped' => ['Core.php', '$this->servers->post($request->node, [$request->untie()]);', ''],
            'the_replica_frozen' => ['Exception/Refused.php', "'NOACK' => NoAck::class,", ''],
            'a_hold_that_may_not_last' => ['Core.php', '$left / 1000 < $this->settings->lease / 2', 'false'],
            'a_time_out_leaves_no_place' => self::LEAVES_NOTHING,
            'several_permits' => self::ONE_PERMIT,
            'a_large_request_is_not_overtaken' => self::ONE_PERMIT,
            'permits_outlast_a_cut' => self::ONE_PERMIT,
            'permits_of_an_owner' => ['Core.php', '$request->permits > $held->permits', 'false'],
            'a_try_at_a_closed_port' => self::TRIES_FOR_LONG,
            'a_try_at_a_replica' => self::TRIES_FOR_LONG,
            'a_try_without_replicas' => self::TRIES_FOR_LONG,
            'a_try_at_a_busy_server' => self::TRIES_FOR_LONG,
            'a_try_at_a_loading_server' => self::TRIES_FOR_LONG,
            'a_wait_at_a_loading_server' => ['Exception/Refused.php', "'LOADING', ", ''],
            'a_hold_over_a_busy_server' => ['Exception/Refused.php', "'BUSY', ", ''],
            'a_late_release_ends_no_later_hold' => self::KEEPS_THE_NAME,
            'a_late_release_of_a_lost_hold' => self::KEEPS_THE_NAME,
            'taken_again_after_a_loss' => [
                'Core.php', 'if ($request->token !== 0) {', 'if ($request->token !== 0 && $request->node?->overdue === false) {',
            ],
            'asked_again_after_a_lost_reply' => ['Core.php', '$again = $request->asked;', '$again = false;'],
            'bad_arguments' => ['Settings.php', 'if (!($value >= 0))', 'if (false)'],
        ];
        foreach ($faults as $case => $fault) {
            yield $case => [$case, $fault];
        }
    }

    public function testEveryCaseHasItsFault(): void
    {
        $planted = array_keys(iterator_to_array(self::faults()));
        $cases = array_diff(array_keys(CasesTest::cases()), CasesTest::NONE);
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
     * Who waits for ever is not waited for.
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
