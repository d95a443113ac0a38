//! Bytes that are hard to handle.

/// Returns bytes that have broken programs: formats, ends of strings and lines, the protocol's own signs, the effects'.
pub fn awkward() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    let texts: [&[u8]; 18] = [
        b"%s%s%s%n%n%d%99999999s",
        b"a\0b",
        b"\0\0\0\0",
        b"two words",
        b"\r\n+OK\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"1 h1 1 1 1 1:a w0",
        b"3:bob",
        b"BLOCK",
        b"**",
        b"-1",
        b"{}",
        b"{k}{k}",
        b"\xff\xfe\xc0\x80\xed\xa0\x80",
        "\u{202e}\u{0}\u{1f512}".as_bytes(),
        b"\\x00\\'\\\"",
        b"__dlock@0__:k",
        b"../../etc/passwd;$(reboot)`id`",
    ];
    names.extend(texts.map(<[u8]>::to_vec));
    names.push((0..=255).collect());
    names.push((0..1024).map(|at| (at * 7) as u8).collect());
    names.push(vec![b'%'; 1023]);
    names
}
