package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sortie-ai/acp"
)

// endings starts the runtime anew for each way of ending it, opens a session,
// and looks what is left. It speaks just enough of the protocol by itself: the
// package would tidy up what is to be seen.
func endings(ctx context.Context, c acp.Config) []ending {
	list := []ending{}
	var failed error // one that cannot be tried says enough of the others
	for _, how := range waysToEnd {
		e := ending{How: how, Left: []leftProcess{}}
		if failed == nil {
			failed = tryEnding(ctx, c, &e)
		}
		if failed != nil {
			e.Exit = "not tried: " + oneLine(failed.Error())
		}
		list = append(list, e)
	}
	return list
}

// A subject is a runtime that is going to be ended. Its leader stays unreaped
// until finish, so that neither its ID nor its group's can be another's.
type subject struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	mark   string        // in the environment of the runtime and all it starts
	answer chan int      // sender: read; one value for each answer; 2 fit, 2 come
	read   chan struct{} // closed when standard output has ended
}

func tryEnding(ctx context.Context, c acp.Config, e *ending) error {
	s, err := startSubject(c)
	if err != nil {
		return err
	}
	// As long as the package waits for the two.
	limit := or(c.HandshakeTimeout, max(c.ReadTimeout, time.Minute)) + or(c.ReadTimeout, 30*time.Second)
	if err = s.open(ctx, c.Workspace, limit); err != nil {
		return errors.Join(err, s.finish())
	}
	began := time.Now()
	s.end(e.How)
	exited := s.watch(ctx, or(c.StopGrace, stopGrace))
	e.Left = s.left()
	e.Exit = "still running"
	err = s.finish()
	if !exited.IsZero() {
		e.Exit = s.cmd.ProcessState.String()
		e.AfterMS = exited.Sub(began).Milliseconds()
	}
	return err
}

func startSubject(c acp.Config) (*subject, error) {
	s := &subject{
		mark:   "ACP_PROBE_MARK=" + rand.Text(),
		answer: make(chan int, 2),
		read:   make(chan struct{}),
	}
	path, err := exec.LookPath(c.Argv[0])
	if err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil { // from here, not from the workspace
		return nil, err
	}
	s.cmd = exec.Command(path, c.Argv[1:]...) // #nosec G204 -- running the given command is the purpose
	s.cmd.Dir = c.Workspace
	s.cmd.Env = append(os.Environ(), s.mark, "PWD="+c.Workspace)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go s.readAll(stdout) // ends with the stream, which finish closes at the latest
	return s, nil
}

// readAll takes everything the runtime says and reports the answers.
func (s *subject) readAll(stdout io.Reader) {
	defer close(s.read)
	const most = 10 << 20 // of a line; of a longer one the rest is left out
	r := bufio.NewReaderSize(stdout, 64<<10)
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line) < most {
			line = append(line, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		var m struct {
			ID     json.RawMessage
			Method string
		}
		if json.Unmarshal(line, &m) == nil && m.Method == "" {
			if id, err := strconv.Atoi(strings.Trim(string(m.ID), `"`)); err == nil {
				select {
				case s.answer <- id:
				default:
				}
			}
		}
		if err != nil {
			return
		}
		line = nil
	}
}

// open does the handshake and asks for a session. An error answer is as good as
// a session here.
func (s *subject) open(ctx context.Context, dir string, limit time.Duration) error {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	cwd, err := json.Marshal(dir)
	if err != nil {
		return err
	}
	for i, line := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"fs":{"readTextFile":false,"writeTextFile":false},"terminal":false},"clientInfo":{"name":"acp","version":"probe"}}}`,
		`{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":` + string(cwd) + `,"mcpServers":[]}}`,
	} {
		if _, err := io.WriteString(s.stdin, line+"\n"); err != nil {
			return err
		}
		for id := 0; id != i+1; {
			select {
			case id = <-s.answer:
			case <-s.read:
				return errors.New("it closed its standard output")
			case <-timeout.C:
				return fmt.Errorf("no answer in %s", limit)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

func (s *subject) end(how string) {
	pid := s.cmd.Process.Pid
	switch how {
	case endOfInput:
		_ = s.stdin.Close()
	case sigterm:
		_ = unix.Kill(-pid, unix.SIGTERM)
	case kill:
		_ = unix.Kill(-pid, unix.SIGKILL)
	case killFirst:
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// watch waits until the leader has exited and nothing is left, at most the
// grace, and after an exit 2 s. It returns the time of the exit, or zero.
func (s *subject) watch(ctx context.Context, grace time.Duration) (exited time.Time) {
	const after = 2 * time.Second
	bound := time.Now().Add(grace)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ; ctx.Err() == nil && time.Now().Before(bound); <-tick.C {
		if exited.IsZero() && s.hasExited() {
			exited = time.Now()
			bound = exited.Add(after)
		}
		if !exited.IsZero() && len(s.left()) == 0 {
			break
		}
	}
	return exited
}

// hasExited reports whether the leader has, without reaping it.
func (s *subject) hasExited() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, s.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo != 0
}

// left lists what runs of the runtime: its group, and whatever has inherited
// the mark.
func (s *subject) left() []leftProcess {
	list := []leftProcess{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		group, err := unix.Getpgid(pid)
		if err != nil || group != s.cmd.Process.Pid && !s.marked(pid) {
			continue
		}
		if name, alive := nameOf(pid); alive {
			list = append(list, leftProcess{pid, name})
		}
	}
	return list
}

func (s *subject) marked(pid int) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && bytes.Contains(env, []byte(s.mark))
}

// nameOf reads a process's name; false for a zombie.
func nameOf(pid int) (string, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, found := strings.Cut(string(stat), "(")
	i := strings.LastIndex(rest, ") ")
	if err != nil || !found || i < 0 || strings.HasPrefix(rest[i+2:], "Z") {
		return "", false
	}
	return oneLine(rest[:i]), true
}

// finish ends all that is left, then reaps.
func (s *subject) finish() error {
	for range 100 {
		_ = unix.Kill(-s.cmd.Process.Pid, unix.SIGKILL)
		list := s.left()
		if len(list) == 0 {
			break
		}
		for _, l := range list {
			s.killMarked(l.PID)
		}
		time.Sleep(10 * time.Millisecond)
	}
	var exit *exec.ExitError
	err := s.cmd.Wait() // closes the pipes
	<-s.read
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// killMarked kills a process that left the group, if it is still the one that
// bears the mark.
func (s *subject) killMarked(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	if s.marked(pid) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
	_ = unix.Close(fd)
}
