// Package server starts servers with the module, kills and restarts them, and connects to them.
package server

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// ClaimMs is the servers' claim window, by default.
const ClaimMs = 1000

// Server is a server's process on this machine.
type Server struct {
	// Address is the server's address.
	Address   string
	words     []string
	log       string
	process   *exec.Cmd
	epoch     atomic.Int64
	directory string
}

// Start starts a server in a directory of its own, with an AOF that is written before each reply.
func Start(program, module, directory string) (*Server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := listener.Addr().String()
	listener.Close()
	_, port, _ := net.SplitHostPort(address)
	s := &Server{Address: address, directory: directory, log: filepath.Join(directory, "log")}
	s.words = []string{
		program, "--port", port, "--bind", "127.0.0.1", "--dir", directory, "--save", "", "--appendonly", "yes",
		"--appendfsync", "always", "--loadmodule", module, "claim-window-ms", strconv.Itoa(ClaimMs),
	}
	return s, s.Again()
}

// Again starts the server, for the first time or after its death.
func (s *Server) Again() error {
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	s.process = exec.Command(s.words[0], s.words[1:]...)
	s.process.Stdout, s.process.Stderr = log, log
	if err := s.process.Start(); err != nil {
		return err
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if c, err := Open(s.Address); err == nil {
			c.Close()
			return nil
		}
	}
	s.Stop()
	text, _ := os.ReadFile(s.log)
	return fmt.Errorf("%s does not answer: %s", strings.Join(s.words, " "), text)
}

// Epoch returns how often the server has been restarted.
func (s *Server) Epoch() int { return int(s.epoch.Load()) }

// Kill ends the server by a signal. When it returns, the server is dead, and there is a new epoch.
func (s *Server) Kill(by syscall.Signal) error {
	if err := s.process.Process.Signal(by); err != nil {
		return err
	}
	s.process.Wait()
	s.epoch.Add(1)
	return nil
}

// Stop ends the server.
func (s *Server) Stop() {
	s.process.Process.Kill()
	s.process.Wait()
}

// Connect opens a connection to the server, by another door if one is named. It waits for a server that is down.
func (s *Server) Connect(door string) (*Conn, error) {
	if door == "" {
		door = s.Address
	}
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		epoch := s.Epoch()
		var c *Conn
		if c, err = Open(door); err != nil {
			continue
		}
		// One that was opened while the server died may belong to either.
		if epoch == s.Epoch() {
			c.Epoch = epoch
			return c, nil
		}
		c.Close()
	}
	return nil, fmt.Errorf("no connection to %s: %w", door, err)
}

// Versions returns the server's name and version, and the module's version.
func (s *Server) Versions() (string, string, error) {
	c, err := s.Connect("")
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	info, err := c.Do("INFO", "server")
	if err != nil {
		return "", "", err
	}
	fields := map[string]string{}
	for _, line := range strings.Split(info.Text, "\r\n") {
		if name, value, found := strings.Cut(line, ":"); found {
			fields[name] = value
		}
	}
	name := "Redis " + fields["redis_version"]
	if version := fields["valkey_version"]; version != "" {
		name = "Valkey " + version
	}
	modules, err := c.Do("MODULE", "LIST")
	if err != nil {
		return name, "", err
	}
	for _, module := range modules.Items {
		about := map[string]Value{}
		for i := 0; i+1 < len(module.Items); i += 2 {
			about[module.Items[i].Text] = module.Items[i+1]
		}
		if about["name"].Text == "dlock" {
			n := about["ver"].Number
			// A development build has the digits of its commit; src/version.rs says where.
			if n>>30 == 1 {
				return name, fmt.Sprintf("%d.%d.0-dev+%05x", n>>26&0xf, n>>20&0x3f, n&0xfffff), nil
			}
			return name, fmt.Sprintf("%d.%d.%d", n/10000, n/100%100, n%100), nil
		}
	}
	return name, "", fmt.Errorf("%s has not loaded the module", name)
}
