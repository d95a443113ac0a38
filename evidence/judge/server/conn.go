package server

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"
)

// Conn is a connection to the server, for one command at a time.
type Conn struct {
	// Number distinguishes connections; ID is the server's for this one.
	Number int
	ID     int64
	// Epoch is the number of the server's restarts before it was opened.
	Epoch int
	// Cut tells that it is being closed on purpose.
	Cut  atomic.Bool
	net  net.Conn
	from *bufio.Reader
}

var numbers atomic.Int64

// Open connects to an address where a server is ready, and asks for the connection's ID.
func Open(address string) (*Conn, error) {
	to, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return nil, err
	}
	c := &Conn{Number: int(numbers.Add(1)), net: to, from: bufio.NewReader(to)}
	id, err := c.Do("CLIENT", "ID")
	if err == nil && id.Kind != Number {
		err = fmt.Errorf("CLIENT ID: %s", id.Text)
	}
	if err == nil {
		// A server that is loading its data does not count as ready.
		var pong Value
		if pong, err = c.Do("PING"); err == nil && pong.Text != "PONG" {
			err = fmt.Errorf("PING: %s", pong.Text)
		}
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	c.ID = id.Number
	return c, nil
}

// Do sends a command and reads its reply. An error of the server is a value.
func (c *Conn) Do(words ...string) (Value, error) {
	if _, err := c.net.Write(Command(words).Append(nil)); err != nil {
		return Value{}, err
	}
	return Read(c.from)
}

// Close closes the connection.
func (c *Conn) Close() { c.net.Close() }

// Reset closes the connection at once, without the usual shutdown.
func (c *Conn) Reset() {
	if to, ok := c.net.(*net.TCPConn); ok {
		to.SetLinger(0)
	}
	c.net.Close()
}

// Kill makes the server close another connection.
func (c *Conn) Kill(other *Conn) error {
	_, err := c.Do("CLIENT", "KILL", "ID", strconv.FormatInt(other.ID, 10))
	return err
}

// Lists tells if the server still has another connection.
func (c *Conn) Lists(other *Conn) (bool, error) {
	list, err := c.Do("CLIENT", "LIST", "ID", strconv.FormatInt(other.ID, 10))
	if err == nil && list.Kind != Bulk {
		err = fmt.Errorf("CLIENT LIST: %s", list.Text)
	}
	return len(list.Text) > 1, err
}
