// Judge lets Porcupine, a third-party checker of linearizability, judge the records of clients of real servers.
//
// It starts a server with the module, lets clients play scenes at it, cuts their connections, kills the server, and compares the
// clients' records with a model of dlock's promises (lock/). First it does so at a server with planted faults: the run fails
// unless it finds each of them.
//
//	lock/     the model
//	history/  what clients write down, and the operations that follow from it
//	scenes/   what the clients do
//	server/   servers and connections
//	faulty/   servers with a fault
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Clients of a scene, besides the observer.
const clients = 4

type options struct {
	module, results string
	machine         string
	servers         []string
	seed            uint64
	quick           bool
	// length is the time for one server, round that of one round of scenes, faulty that of a scene at a faulty server.
	length, round, faulty time.Duration
	// trials is the number of histories in which each fault is planted.
	trials  int
	timeout time.Duration
}

func main() {
	o := options{round: 8 * time.Second, faulty: 6 * time.Second, trials: 10, timeout: 2 * time.Minute}
	flag.StringVar(&o.module, "module", "", "the module")
	flag.StringVar(&o.results, "results", "target/judge", "where the figures and the page go")
	flag.Uint64Var(&o.seed, "seed", 1, "what the clients' doings are drawn from")
	flag.BoolVar(&o.quick, "quick", false, "three minutes")
	minutes := flag.Float64("minutes", 10, "how long each server is under load")
	file := flag.String("again", "", "starts nothing, but judges again a history that was written down")
	flag.DurationVar(&o.timeout, "timeout", o.timeout, "a history that takes longer to judge is undecided")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "judge [options] SERVER…: those of the servers that are not there are left out")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *file != "" {
		v, err := again(*file, o.timeout)
		if err != nil || v.Result != porcupine.Ok {
			fmt.Fprintln(os.Stderr, "judge:", v.Result, err)
			os.Exit(1)
		}
		fmt.Println(v.Result)
		return
	}
	o.length = time.Duration(*minutes * float64(time.Minute))
	for _, program := range flag.Args() {
		if _, err := exec.LookPath(program); err == nil {
			o.servers = append(o.servers, program)
		}
	}
	if o.quick && len(o.servers) > 0 {
		// Judging takes a part of the time.
		o.servers, o.length, o.trials = o.servers[:1], 165*time.Second, 3
	}
	if err := o.run(); err != nil {
		fmt.Fprintln(os.Stderr, "judge:", err)
		os.Exit(1)
	}
	fmt.Println("All as promised.")
}

func (o *options) run() error {
	module, err := filepath.Abs(o.module)
	if err != nil {
		return err
	}
	o.module, o.machine = module, machine()
	if err := os.MkdirAll(o.results, 0o755); err != nil {
		return err
	}
	var wrong []string
	if len(o.servers) == 0 {
		return errors.New("there is no such server")
	}
	for _, program := range o.servers {
		run, err := o.play(program)
		if err != nil {
			return err
		}
		if err := o.keep(run); err != nil {
			return err
		}
		wrong = append(wrong, run.Wrong...)
	}
	if len(wrong) > 0 {
		return errors.New("not as promised:\n" + strings.Join(wrong, "\n"))
	}
	return nil
}
