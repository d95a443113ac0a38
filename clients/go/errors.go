// SPDX-License-Identifier: MIT

package dlock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Why a lock is not granted, or no longer held. The text of an error has more; ask by errors.Is.
var (
	// ErrTaken: others hold it. Nothing is broken.
	ErrTaken = errors.New("dlock: the lock is taken")
	// ErrTimeout: the lock was not granted in time. If that is because nobody answered, the error wraps the reason.
	ErrTimeout = errors.New("dlock: not granted in time")
	// ErrNotHeld: the lock is not, or no longer, held under this name and token.
	ErrNotHeld = errors.New("dlock: not held")
	// ErrFenced: a guarded command was not run, as the lock is not held under this token.
	ErrFenced = errors.New("dlock: fenced")
	// ErrDeadlock: the wait could never end.
	ErrDeadlock = errors.New("dlock: deadlock")
	// ErrReplaced: another client asked under the same owner's name and has the place. It is not asked for again.
	ErrReplaced = errors.New("dlock: replaced")
	// ErrQueueFull: one of the server's caps on places and holders is reached.
	ErrQueueFull = errors.New("dlock: the queue is full")
	// ErrQuarantine: the server grants nothing for now, since it is drained or was promoted a moment ago. A wait asks again.
	ErrQuarantine = errors.New("dlock: quarantine")
	// ErrNoAck: too few replicas have confirmed. What was asked may be in force, as after a lost reply.
	ErrNoAck = errors.New("dlock: not confirmed")
	// ErrUnreachable: the connection is lost, or the server does not answer.
	ErrUnreachable = errors.New("dlock: unreachable")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("dlock: closed")
	// ErrArgument: an argument is wrong. The text names it.
	ErrArgument = errors.New("dlock: bad argument")
)

var errNoAnswer = errors.New("the server does not answer")

var codes = map[string]error{
	"NOTHELD": ErrNotHeld, "FENCED": ErrFenced, "DEADLOCK": ErrDeadlock, "REPLACED": ErrReplaced,
	"QUEUEFULL": ErrQueueFull, "QUARANTINE": ErrQuarantine, "NOACK": ErrNoAck,
}

// The first words of transient errors: another node, or the same one later, may succeed. UNBLOCKED: the server has become a
// replica.
var transient = []string{
	"UNBLOCKED", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "LOADING", "BUSY", "NOREPLICAS", "MISCONF", "READONLY", "MOVED",
	"ASK", "NOACK", "QUARANTINE",
}

// ServerError is an error of the server, in its words. errors.Is finds the Err… of its first word.
type ServerError string

func (e ServerError) Error() string { return string(e) }

// RedisError makes it one of go-redis' own, for redis.HasErrorPrefix.
func (e ServerError) RedisError() {}

// Is finds the Err… of the first word.
func (e ServerError) Is(target error) bool { return codes[e.code()] == target }

func (e ServerError) code() string {
	word, _, _ := strings.Cut(string(e), " ")
	return word
}

// unreachable wraps an error of the network.
func unreachable(why error) error {
	if errors.Is(why, ErrUnreachable) {
		return why
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, why)
}

// errorOf returns why the context has ended, with its cause if that says more, or nil.
func errorOf(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

func badArgument(name, why string) error { return fmt.Errorf("%w: %s %s", ErrArgument, name, why) }

// isAnswer reports whether a server has read the command, and will not answer it in another way. A refused login is about the
// connection.
func isAnswer(err error) bool {
	var said ServerError
	return err == nil || errors.As(err, &said) && !isTransient(err) && said.code() != "WRONGPASS" && said.code() != "NOAUTH"
}

// mayHaveRun reports whether a command without an answer may have reached a server.
func mayHaveRun(err error) bool {
	var network *net.OpError
	return errors.Is(err, ErrUnreachable) && isTransient(err) && !(errors.As(err, &network) && network.Op == "dial")
}

// isTransient reports whether to retry: another connection, another node or time may help.
func isTransient(err error) bool {
	var said ServerError
	if errors.As(err, &said) {
		return slices.Contains(transient, said.code()) || strings.HasPrefix(string(said), "ERR max number of clients")
	}
	var name *net.DNSError
	var unknown x509.UnknownAuthorityError
	var wrong *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	var address *net.AddrError
	var network net.UnknownNetworkError
	switch {
	case errors.As(err, &name):
		return !name.IsNotFound
	case errors.As(err, &unknown), errors.As(err, &wrong), errors.Is(err, redis.ErrClosed):
		return false
	case errors.As(err, &plain), errors.As(err, &address), errors.As(err, &network): // no TLS there, no address, no network
		return false
	}
	return errors.Is(err, ErrUnreachable)
}
