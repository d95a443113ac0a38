package dlock

import (
	"bytes"
	"io"
	"net"
	"sync"
)

// A path leads to a server. While it is frozen nothing comes through, and neither end gets an error.
type path struct {
	listener net.Listener
	mu       sync.Mutex
	thawed   *sync.Cond
	frozen   bool
	pattern  []byte
	met      []func()
	sockets  []net.Conn
}

func (s stage) pathTo(server string, met ...func()) *path {
	s.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	p := &path{listener: listener, met: met}
	p.thawed = sync.NewCond(&p.mu)
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			for _, met := range p.met {
				met()
			}
			far, err := net.Dial("tcp", server)
			if err != nil {
				_ = near.Close()
				continue
			}
			p.mu.Lock()
			p.sockets = append(p.sockets, near, far)
			p.mu.Unlock()
			go p.pass(near, far)
			go p.pass(far, near)
		}
	}()
	s.Cleanup(func() {
		_ = listener.Close()
		p.thaw()
		for _, socket := range p.sockets {
			_ = socket.Close()
		}
	})
	return p
}

func (p *path) pass(from, to net.Conn) {
	buffer := make([]byte, 1<<16)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		if p.pattern != nil && bytes.Contains(buffer[:n], p.pattern) {
			p.frozen = true
		}
		for p.frozen {
			p.thawed.Wait()
		}
		p.mu.Unlock()
		_, _ = to.Write(buffer[:n])
		if err != nil {
			if half, ok := to.(*net.TCPConn); ok && err == io.EOF {
				_ = half.CloseWrite()
			} else {
				_ = to.Close()
			}
			return
		}
	}
}

func (p *path) address() string { return p.listener.Addr().String() }

func (p *path) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

// freezeAt lets through what comes before these words, and not them.
func (p *path) freezeAt(words string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pattern = []byte(words)
}

func (p *path) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen, p.pattern = false, nil
	p.thawed.Broadcast()
}
