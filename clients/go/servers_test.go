package dlock

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Servers of a test's own: by TLS, and with Sentinels. They run the program and the module of the stage's server.

// program starts the stage's server program with these settings, and says how to send it a signal.
func (s stage) program(words ...string) (signal func(os.Signal), output *bytes.Buffer) {
	s.Helper()
	info := connection(addresses("single")[0]).Info(ctx, "server").Val()
	_, id, _ := strings.Cut(info, "process_id:")
	id, _, _ = strings.Cut(id, "\r\n")
	path, err := os.Readlink("/proc/" + id + "/exe")
	s.must(err)
	output = &bytes.Buffer{}
	server := exec.Command(path, words...)
	server.Args[0] = "redis-server" // by another name the program may be another one
	server.Dir, server.Stdout = s.TempDir(), output
	s.must(server.Start())
	s.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	return func(which os.Signal) { s.must(server.Process.Signal(which)) }, output
}

func (s stage) module() string {
	s.Helper()
	modules, err := connection(addresses("single")[0]).Do(ctx, "MODULE", "LIST").Slice()
	s.must(err)
	for _, one := range modules {
		if one, ok := one.(map[any]any); ok && one["name"] == "dlock" {
			return one["path"].(string)
		}
	}
	s.Fatalf("the server has no module: %v", modules)
	return ""
}

// certificate makes one for localhost, in files, and the pool that trusts it.
func (s stage) certificate() (certificate, key string, trusted *x509.CertPool) {
	s.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s.must(err)
	pattern := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true,
	}
	signed, err := x509.CreateCertificate(rand.Reader, pattern, pattern, &private.PublicKey, private)
	s.must(err)
	secret, err := x509.MarshalECPrivateKey(private)
	s.must(err)
	directory := s.TempDir()
	certificate, key = filepath.Join(directory, "certificate.pem"), filepath.Join(directory, "key.pem")
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})
	s.must(os.WriteFile(certificate, public, 0o600))
	s.must(os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), 0o600))
	trusted = x509.NewCertPool()
	trusted.AppendCertsFromPEM(public)
	return certificate, key, trusted
}

// A rediss URL with a user and a database: a hold, a wait that is granted, and what is not trusted is an error at once.
func TestTLS(t *testing.T) {
	in(t, func(s stage) {
		certificate, key, trusted := s.certificate()
		port := s.control("port")
		_, output := s.program("--port", "0", "--tls-port", port, "--bind", "127.0.0.1", "--save", "", "--tls-cert-file", certificate,
			"--tls-key-file", key, "--tls-ca-cert-file", certificate, "--tls-auth-clients", "no",
			"--user", "locker", "on", ">word", "~*", "&*", "+@all", "--loadmodule", s.module())
		options, err := redis.ParseURL("rediss://locker:word@localhost:" + port + "/3")
		s.must(err)
		options.TLSConfig.RootCAs = trusted
		client := redis.NewClient(options)
		defer client.Close()
		if err := s.up(client); err != nil {
			if strings.Contains(output.String(), "TLS support") || strings.Contains(output.String(), "Bad directive") {
				s.Skip("this server is built without TLS")
			}
			s.Fatalf("%v\n%s", err, output)
		}
		locks := s.with(client, Settings{Lease: lease})
		hold := s.lock(locks)
		s.check(client.Exists(ctx, s.key).Val() == 1, "it is in another database")
		wait := s.start(ctx, locks)
		s.until("another waits", func() bool { return len(client.Do(ctx, "DLOCK.INFO", s.key).Val().(map[any]any)["queue"].([]any)) == 1 })
		_, err = hold.Guard(ctx, "SET", s.key+":x", 1)
		s.must(err)
		s.must(hold.Release(ctx))
		s.must(s.had(wait).Release(ctx))

		stranger := *options
		stranger.Dialer, stranger.TLSConfig = nil, &tls.Config{ServerName: "localhost"} // old versions have put theirs there
		began := time.Now()
		_, err = s.with(redis.NewClient(&stranger), Settings{ReplyTimeout: patience}).Lock(ctx, s.key)
		var unknown x509.UnknownAuthorityError
		s.check(errors.As(err, &unknown) && time.Since(began) < patience/2, "%v", err)
	}, "single")
}

// up waits until the server answers.
func (s stage) up(client *redis.Client) (err error) {
	for end := time.Now().Add(patience / 3); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = client.Ping(ctx).Err(); err == nil {
			break
		}
	}
	return err
}

// The primary is killed, or stalls: the Sentinels promote the replica, where the holds continue under their tokens, and
// the wait is granted. A lease of 1.5 x (3 s + 5 s) outlasts a detection of 3 s.
func TestSentinel(t *testing.T) {
	byClient := func(options *redis.FailoverOptions, settings Settings) (*Locks, error) {
		return New(redis.NewFailoverClient(options), settings)
	}
	kept := Settings{Lease: 2 * long, HangTimeout: 4 * long}
	for name, one := range map[string]struct {
		fault     os.Signal // nil: a planned failover
		detection int
		connect   func(*redis.FailoverOptions, Settings) (*Locks, error)
		settings  Settings
	}{
		"killed":     {syscall.SIGKILL, 1000, byClient, kept},
		"stopped":    {syscall.SIGSTOP, 3000, byClient, Settings{Lease: 12 * time.Second}},
		"killed too": {syscall.SIGKILL, 1000, NewFailover, kept},
		"planned":    {nil, 3000, NewFailover, kept},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(s stage) { s.sentinels(one.fault, one.detection, one.connect, one.settings) }, "single")
		})
	}
}

func (s stage) sentinels(
	fault os.Signal, detection int, connect func(*redis.FailoverOptions, Settings) (*Locks, error), settings Settings,
) {
	start := func(more ...string) (address string, signal func(os.Signal)) {
		port := s.control("port")
		signal, output := s.program(append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--repl-diskless-sync-delay", "0"}, more...)...)
		address = "127.0.0.1:" + port
		if err := s.up(connection(address)); err != nil {
			s.Fatalf("%v\n%s", err, output)
		}
		return address, signal
	}
	first, signal := start("--loadmodule", s.module())
	_, port, _ := net.SplitHostPort(first)
	second, _ := start("--loadmodule", s.module(), "--replicaof", "127.0.0.1 "+port)
	s.until("the replica is there", func() bool {
		return strings.Contains(connection(second).Info(ctx, "replication").Val(), "master_link_status:up")
	})
	var sentinels []string
	for i := range 3 {
		file := filepath.Join(s.TempDir(), "sentinel.conf")
		own := s.control("port")
		s.must(os.WriteFile(file, fmt.Appendf(nil, "port %s\nbind 127.0.0.1\nsentinel monitor locks 127.0.0.1 %s 2\n"+
			"sentinel down-after-milliseconds locks %d\nsentinel failover-timeout locks 5000\n", own, port, detection), 0o600))
		_, output := s.program(file, "--sentinel")
		sentinels = append(sentinels, "127.0.0.1:"+own)
		if err := s.up(connection(sentinels[i])); err != nil {
			s.Fatalf("%v\n%s", err, output)
		}
	}
	for _, one := range sentinels {
		s.until("the Sentinels know each other and the replica", func() bool {
			words, err := connection(one).Do(ctx, "SENTINEL", "MASTER", "locks").Result()
			known, ok := words.(map[any]any)
			return err == nil && ok && known["num-slaves"] == "1" && known["num-other-sentinels"] == "2"
		})
	}
	locks, err := connect(&redis.FailoverOptions{MasterName: "locks", SentinelAddrs: sentinels}, settings)
	s.must(err)
	s.Cleanup(locks.Close)
	hold := s.lock(locks)
	wait := s.start(ctx, locks)
	var others []*Hold
	for i := range 19 {
		others = append(others, s.had(s.startAt(ctx, locks, fmt.Sprint(s.key, i))))
	}
	held := func(address, name string) []any {
		reply, _ := connection(address).Do(ctx, "DLOCK.INFO", s.key).Val().(map[any]any)
		all, _ := reply[name].([]any)
		return all
	}
	for _, address := range []string{first, second} {
		s.until("it is held, and another waits", func() bool { return len(held(address, "holders")) == 1 && len(held(address, "queue")) == 1 })
	}
	began := time.Now()
	if fault != nil {
		signal(fault)
	} else {
		s.must(connection(sentinels[0]).Do(ctx, "SENTINEL", "FAILOVER", "locks").Err())
	}
	s.until("the hold is kept by the other server", func() bool {
		holders := held(second, "holders")
		if len(holders) == 0 {
			return false
		}
		holder := row(holders[0].(map[any]any))
		return holder.int("token") == hold.Token && holder.text("in") != ""
	})
	if fault == nil { // the former primary becomes a replica, and ends its connections, after eleven seconds
		role, _ := connection(first).Do(ctx, "ROLE").Slice()
		s.check(len(role) > 0 && role[0] == "master", "it was not left before that: %v after %v", role, time.Since(began))
	}
	for _, one := range append(others, hold) {
		s.check(one.Lost() == nil, "%v", one.Lost())
	}
	_ = hold.Release(ctx) // its connection may lead to the former primary: then the release continues in the background
	next := s.had(wait)
	s.check(next.Token > hold.Token, "%d after %d", next.Token, hold.Token)
	s.must(next.Release(ctx))
}
