<?php

// The package as it was installed, or as it is here; and Debian's libraries.

declare(strict_types=1);

$installed = getenv('DLOCK_AUTOLOAD');
$planted = getenv('DLOCK_PLANT');
if ($installed && !$planted) {
    require_once $installed;
}
spl_autoload_register(static function (string $class) use ($planted): void {
    foreach (['Dlock\\Tests\\' => __DIR__, 'Dlock\\' => $planted ?: __DIR__ . '/../src'] as $prefix => $directory) {
        if (str_starts_with($class, $prefix)) {
            $file = $directory . '/' . strtr(substr($class, strlen($prefix)), '\\', '/') . '.php';
            if (is_file($file)) {
                require $file;
            }

            return;
        }
    }
});
foreach (['Predis', 'Symfony/Component/Lock', 'Psr/Log'] as $library) {
    $file = "/usr/share/php/$library/autoload.php";
    if (is_file($file)) {
        require_once $file;
    }
}
error_reporting(E_ALL & ~E_DEPRECATED); // Debian's older libraries have some of PHP 8.2's
set_error_handler(static function (int $level, string $text, string $file): bool {
    if ((error_reporting() & $level) !== 0 && preg_match('#/(src|redis)/#', $file)) {
        throw new ErrorException($text, 0, $level, $file);
    }

    return false;
});
