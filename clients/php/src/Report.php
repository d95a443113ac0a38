<?php

// SPDX-License-Identifier: MIT

declare(strict_types=1);

namespace Dlock;

use Psr\Log\LoggerInterface;

/**
 * What the program's logger and observer are told. Both may be absent.
 *
 * @internal
 */
final class Report
{
    public function __construct(private readonly ?LoggerInterface $logger, private readonly ?Observer $observer)
    {
    }

    /** @param array<string, string> $context */
    public function warn(string $text, array $context): void
    {
        $this->logger?->warning($text, $context);
    }

    /** @param array<string, string> $context */
    public function note(string $text, array $context): void
    {
        $this->logger?->info($text, $context);
    }

    /** Whoever counts may fail, and nothing else does. */
    public function tell(\Closure $what): void
    {
        try {
            $this->observer !== null && $what($this->observer);
        } catch (\Throwable $error) {
            $this->failed('the observer', $error);
        }
    }

    /** So that a callback of the program's stops nothing. */
    public function failed(string $whose, \Throwable $error): void
    {
        $this->logger?->error("$whose has failed: {error}", ['error' => $error->getMessage()]);
    }
}
