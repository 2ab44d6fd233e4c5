//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A running command whose JSON lines are read as they come.
type running struct {
	t      *testing.T
	cmd    *exec.Cmd
	out    io.ReadCloser
	lines  *bufio.Scanner
	stderr bytes.Buffer
	pid    int // the runtime's
}

// startJSON starts `acp run -json` and reads up to the first line of that type.
func startJSON(t *testing.T, until string, args ...string) *running {
	t.Helper()
	r := &running{t: t, cmd: acpCommand(t, append([]string{"run", "-json"}, args...)...)}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.out, r.cmd.Stderr = out, &r.stderr
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.cmd.Process.Kill() })
	r.lines = bufio.NewScanner(out)
	r.next(until)
	return r
}

// next reads up to a line of that type.
func (r *running) next(until string) {
	r.t.Helper()
	for r.lines.Scan() {
		var l struct {
			Type string
			PID  int
			Text string
		}
		if err := json.Unmarshal(r.lines.Bytes(), &l); err != nil {
			r.t.Fatalf("%v: %s", err, r.lines.Text())
		}
		if l.PID != 0 {
			r.pid = l.PID
		}
		if l.Type == until || l.Text == until {
			return
		}
	}
	r.t.Fatalf("no %s; stderr %q", until, r.stderr.String())
}

func (r *running) signal(sig syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		r.t.Fatal(err)
	}
}

// end waits for the command and checks its status, and that the runtime is gone.
func (r *running) end(status int) {
	r.t.Helper()
	err := r.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.t.Fatal(err)
	}
	if got := r.cmd.ProcessState.ExitCode(); got != status {
		r.t.Errorf("status %d (%s), want %d; stderr %q", got, r.cmd.ProcessState, status, r.stderr.String())
	}
	if err := syscall.Kill(-r.pid, 0); err != syscall.ESRCH {
		r.t.Errorf("the runtime's group %d is still there: %v", r.pid, err)
	}
}

// obliging answers session/cancel, and says so in a chunk that comes too late
// to be anything but the turn's last.
func obliging(t *testing.T) []string {
	return scenario(t, prompted, chunk("ready"), `{"expect": "session/cancel"}`,
		`{"jsonrpc":"2.0","id":${id:session/prompt},"result":{"stopReason":"cancelled"}}`, atEOF)
}

// stubborn does nothing of what it is asked.
func stubborn(t *testing.T) []string {
	return scenario(t, `{"ignore": ["SIGTERM"]}`, prompted, chunk("ready"), `{"stop_reading": true}`, `{"sleep_ms": 600000}`)
}

func TestInterruptOnce(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			r := startJSON(t, "ready", with([]string{"-keep-going", "-prompt", "a", "-prompt", "b"}, obliging(t))...)
			r.signal(sig)
			r.next("turn_cancelled")
			r.next("turn_result")
			if !strings.Contains(r.lines.Text(), `"turn_cancelled","message":"`) || !strings.Contains(r.lines.Text(), "interrupted") {
				t.Errorf("%s", r.lines.Text())
			}
			r.next("result")
			if !strings.Contains(r.lines.Text(), `"turns":1,`) {
				t.Errorf("%s", r.lines.Text())
			}
			r.end(130)
			if !strings.Contains(r.stderr.String(), "once more kills the runtime") {
				t.Errorf("stderr %q", r.stderr.String())
			}
		})
	}
}

// TestInterruptOnceStubborn: a runtime that answers nothing is not waited for
// longer than the stop grace, whatever the read timeout.
func TestInterruptOnceStubborn(t *testing.T) {
	t.Parallel()
	r := startJSON(t, "ready", with([]string{"-read-timeout", "1h", "-stop-grace", "200ms", "x"}, stubborn(t))...)
	r.signal(syscall.SIGINT)
	r.next("result")
	r.end(130)
}

func TestInterruptTwice(t *testing.T) {
	t.Parallel()
	r := startJSON(t, "ready", with([]string{"-read-timeout", "1h", "-stop-grace", "1h", "x"}, stubborn(t))...)
	r.signal(syscall.SIGINT)
	r.signal(syscall.SIGTERM) // another one, so that the two cannot become one
	r.end(130)
}

// TestInterruptTwiceOutputStuck: nobody reads what is written.
func TestInterruptTwiceOutputStuck(t *testing.T) {
	t.Parallel()
	flood := scenario(t, prompted, chunk("ready"), `{"send_seq": {"n": 1000000, "line": `+quoted(chunk("x"))+`}}`)
	r := startJSON(t, "ready", with([]string{"-read-timeout", "1h", "-stop-grace", "1h", "x"}, flood)...)
	r.signal(syscall.SIGINT)
	r.signal(syscall.SIGTERM)
	r.end(130)
}

// TestInterruptDuringStart: the runtime never answers initialize. A named pipe
// as the transcript tells when it is there.
func TestInterruptDuringStart(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Skip(err)
	}
	steps := []string{`{"expect": "initialize"}`, `{"stderr": "here\n"}`, `{"sleep_ms": 600000}`}
	cmd := acpCommand(t, with([]string{"run", "-json", "-record", fifo, "x"}, play(t, steps))...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	record, err := os.Open(fifo) // #nosec G304 -- ours
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = record.Close() }()
	for lines := bufio.NewScanner(record); lines.Scan(); {
		if strings.Contains(lines.Text(), `"stderr"`) {
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait()
	if l := lastLine(t, out.String()); cmd.ProcessState.ExitCode() != 130 || l.Error == nil || l.Error.Kind != "turn_cancelled" {
		t.Errorf("%s, %s, %s", cmd.ProcessState, out.String(), errs.String())
	}
}

// TestClosedOutput: whoever reads goes away after the first lines. The command
// must end by itself, and so must the runtime.
func TestClosedOutput(t *testing.T) {
	t.Parallel()
	flood := scenario(t, prompted, chunk("ready"), `{"send_seq": {"n": 1000000, "gap_ms": 1, "line": `+quoted(chunk("x"))+`}}`)
	t.Run("json", func(t *testing.T) {
		t.Parallel()
		r := startJSON(t, "ready", with([]string{"-read-timeout", "1s", "-stop-grace", "1s", "x"}, flood)...)
		_ = r.out.Close()
		r.end(1)
		if !strings.Contains(r.stderr.String(), "acp run: standard output: ") {
			t.Errorf("stderr %q", r.stderr.String())
		}
	})
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		cmd := acpCommand(t, with([]string{"run", "-read-timeout", "1s", "-stop-grace", "1s", "-prompt", "x"},
			scenario(t, prompted, `{"send_seq": {"n": 1000000, "gap_ms": 1, "line": `+quoted(chunk("x\\n"))+`}}`))...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		_ = out.Close()
		_ = cmd.Wait()
		if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(errs.String(), "standard output: ") {
			t.Errorf("%s, stderr %q", cmd.ProcessState, errs.String())
		}
	})
}
