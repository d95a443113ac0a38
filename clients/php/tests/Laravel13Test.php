<?php

declare(strict_types=1);

namespace Dlock\Tests;

use PHPUnit\Framework\TestCase;

/** What Laravel 13 asks of a lock, in a process that has that version, or what stands in for it (laravel13.php). */
final class Laravel13Test extends TestCase
{
    public function testWhatLaravel13AsksOfALock(): void
    {
        $key = (new Server())->key;
        $process = proc_open(
            [PHP_BINARY, '-d', 'display_errors=stderr', __DIR__ . '/laravel13.php', $key],
            [1 => ['pipe', 'w'], 2 => ['pipe', 'w']],
            $pipes,
        );
        [$out, $errors] = [stream_get_contents($pipes[1]), stream_get_contents($pipes[2])];
        self::assertSame(0, proc_close($process), "$out\n$errors");
        self::assertSame([
            'free' => false, 'not ours' => false,
            'taken' => true, 'locked' => true, 'ours' => true,
            'seen by others' => true, 'not theirs' => false, 'refused' => false,
            'refreshed' => true, 'for ever' => true, 'not by others' => false,
            'released' => true, 'free again' => false,
            'a callback' => 'done', 'a wait' => 'done',
            'a number takes it' => true, 'is seen' => true,
            'and gives it back' => true, 'in the end' => false,
        ], json_decode((string) $out, true), "$out\n$errors");
    }
}
