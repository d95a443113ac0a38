<?php

// Ends TLS here, and passes the data on to a server: php tls.php CERTIFICATE-AND-KEY ADDRESS. Prints its own address.

declare(strict_types=1);

[, $pem, $to] = $argv;
$context = stream_context_create(['ssl' => ['local_cert' => $pem]]);
$server = stream_socket_server('tls://127.0.0.1:0', context: $context);
echo stream_socket_get_name($server, false), "\n";
$other = [];
$open = [];
while (true) {
    [$ready, $none] = [[$server, ...$open], null];
    stream_select($ready, $none, $none, null);
    foreach ($ready as $from) {
        if ($from === $server) {
            $near = @stream_socket_accept($server, 5);
            if ($near) {
                $far = stream_socket_client("tcp://$to");
                [$other[(int) $near], $other[(int) $far]] = [$far, $near];
                foreach ([$near, $far] as $one) {
                    stream_set_blocking($one, false);
                    $open[(int) $one] = $one;
                }
            }
        } elseif (isset($open[(int) $from])) {
            $away = $other[(int) $from];
            while (($data = (string) fread($from, 65536)) !== '') {
                fwrite($away, $data);
            }
            if (feof($from)) {
                unset($open[(int) $from], $open[(int) $away]);
                fclose($from);
                fclose($away);
            }
        }
    }
}
