package script

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// process does the steps that concern the process itself.
func (p *player) process(s step) error {
	switch s.verb {
	case "sleep_ms":
		time.Sleep(ms(s.SleepMS))
		return nil
	case "exit":
		return exitStatus(s.Exit)
	case "close_stdin":
		return p.in.r.Close()
	case "close_stdout":
		return p.out.Close()
	case "close_stderr":
		return p.err.Close()
	case "ignore":
		return ignore(s.Ignore)
	case "on_term_ms":
		p.handleTerm(s)
		return nil
	case "stop_self":
		return stopSelf()
	case "kill_self":
		return killSelf()
	case "spawn_holder":
		pid, err := p.spawn(helper{Kind: "holder", Until: deadline(s.SpawnHolder), Holds: s.Holds}, s.Escape)
		if err == nil {
			p.note("holder-pid: %d", pid)
			complain(p.err, "holder-pid: %d", pid)
		}
		return err
	case "spawn_writer":
		h := helper{Kind: "writer", Until: deadline(s.SpawnWriter), Line: s.Line, GapMS: s.GapMS}
		_, err := p.spawn(h, s.Escape)
		return err
	case "respawn":
		h := helper{Kind: "respawn", Until: deadline(cmp.Or(s.Seconds, 60)), GapMS: cmp.Or(s.GapMS, 100)}
		for range s.Respawn {
			if _, err := p.spawn(h, s.Escape); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("unknown step %q", s.verb)
}

// writeStderr writes to standard error. What the client does with it is no
// matter of the scenario.
func (p *player) writeStderr(r io.Reader) error {
	_, _ = io.Copy(p.err, r)
	return nil
}

// filler is n bytes of lines of 80, or of one line.
func filler(n int64, oneLine bool) io.Reader {
	line := bytes.Repeat([]byte("e"), 80)
	if !oneLine {
		line[79] = '\n'
	}
	return io.LimitReader(endless(bytes.Repeat(line, 400)), n)
}

// endless repeats its bytes.
type endless []byte

func (e endless) Read(b []byte) (int, error) { return copy(b, e), nil }

func ignore(names []string) error {
	for _, name := range names {
		switch name {
		case "SIGTERM":
			signal.Ignore(gracefulSignals()...)
		case "SIGHUP":
			signal.Ignore(syscall.SIGHUP)
		case "SIGINT":
			signal.Ignore(syscall.SIGINT)
		case "SIGQUIT":
			signal.Ignore(syscall.SIGQUIT)
		default:
			return fmt.Errorf("unknown signal %q", name)
		}
	}
	return nil
}

// handleTerm answers the graceful signal as a runtime does that has something to
// put away first.
func (p *player) handleTerm(s step) {
	p.onTerm = true
	c := make(chan os.Signal, 1)
	signal.Notify(c, gracefulSignals()...)
	go func() { // ends with the process
		<-c
		p.note("term")
		time.Sleep(ms(*s.OnTermMS))
		if s.Path != "" {
			if err := os.WriteFile(s.Path, []byte("put away\n"), 0o600); err != nil {
				p.note("failed on_term_ms: %v", err)
			}
		}
		p.note("exit %d", s.Status)
		os.Exit(s.Status)
	}()
}

// helper is what a child of the fake runtime is to do.
type helper struct {
	Kind  string
	Until int64 // Unix milliseconds
	Line  string
	GapMS int
	Holds string // the one stream that is inherited; empty: both are
}

func deadline(seconds int) int64 {
	return time.Now().Add(time.Duration(seconds) * time.Second).UnixMilli()
}

func (p *player) spawn(h helper, apart bool) (pid int, err error) {
	var stdout, stderr io.Writer = p.out, p.err
	switch h.Holds {
	case "stdout":
		stderr = nil
	case "stderr":
		stdout = nil
	}
	cmd, err := startHelper(h, stdout, stderr, apart)
	if err != nil {
		return 0, err
	}
	go func() { _ = cmd.Wait() }() // so that no zombie of ours is taken for a survivor
	return cmd.Process.Pid, nil
}

// startHelper starts this program again as a helper that inherits the streams.
func startHelper(h helper, stdout, stderr io.Writer, apart bool) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	arg, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-child", string(arg)) // #nosec G204 -- this program
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if apart {
		escape(cmd)
	}
	return cmd, cmd.Start()
}

// helperMain is the main function of a helper.
func helperMain(arg string, stdout, stderr io.Writer) int {
	var h helper
	if err := json.Unmarshal([]byte(arg), &h); err != nil {
		complain(stderr, "fakeagent: %v", err)
		return statusUsage
	}
	left := func() bool { return time.Now().UnixMilli() < h.Until }
	switch h.Kind {
	case "holder":
		time.Sleep(time.Until(time.UnixMilli(h.Until)))
	case "writer":
		for left() {
			if _, err := io.WriteString(stdout, h.Line+"\n"); err != nil {
				return statusGone
			}
			time.Sleep(ms(h.GapMS))
		}
	case "respawn":
		time.Sleep(ms(h.GapMS))
		if !left() {
			return 0
		}
		if _, err := startHelper(h, stdout, stderr, false); err != nil {
			complain(stderr, "fakeagent: %v", err)
			return statusFailed
		}
	}
	return 0
}

// wrap runs the fake runtime in a child and waits for it. It dies of a signal at
// once, as npx and sh -c do.
func wrap(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	self, err := os.Executable()
	if err != nil {
		complain(stderr, "fakeagent: %v", err)
		return statusFailed
	}
	cmd := exec.Command(self, args...) // #nosec G204 -- this program
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return exit.ExitCode()
		}
		complain(stderr, "fakeagent: %v", err)
		return statusFailed
	}
	return 0
}
