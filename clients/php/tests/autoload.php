<?php

// The package as it is here, for programs that are run without an installed one.

declare(strict_types=1);

spl_autoload_register(static function (string $class): void {
    $file = __DIR__ . '/../src/' . strtr(substr($class, 6), '\\', '/') . '.php';
    if (str_starts_with($class, 'Dlock\\') && is_file($file)) {
        require $file;
    }
});
