package acp

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// process is a started runtime, its leader, as the session's loop sees it.
type process struct {
	pid            int
	stdin          io.WriteCloser
	stdout, stderr io.ReadCloser

	// signal tells the whole group to end, or kills it. Only the loop calls it,
	// and never after it closed mayReap. Nobody left to signal is no error.
	signal func(kill bool) error

	exited  <-chan struct{}   // closed by the waiter: the leader has exited; it is not reaped
	mayReap chan struct{}     // closed by the loop: the waiter may reap
	reaped  <-chan exitStatus // from the waiter, one value; buffered, so that nobody need take it
}

// exitStatus is how the leader ended.
type exitStatus struct {
	text string // "exit status 3" or "signal: killed"
	code int    // -1 for a signal, or if unknown
}

// resolve finds the program that name stands for, as an absolute path.
func resolve(name string) (string, *Error) {
	const message = "the agent command cannot be run"
	path := name
	if filepath.Base(name) != name && !filepath.IsAbs(name) {
		abs, err := filepath.Abs(name)
		if err != nil {
			return "", fail(ErrAgentNotFound, message, err)
		}
		path = abs
	}
	path, err := exec.LookPath(path)
	if err == nil && !filepath.IsAbs(path) {
		// SPEC 1: a hit relative to the working directory is refused. LookPath
		// accepts it under GODEBUG=execerrdot=0.
		err = &exec.Error{Name: name, Err: exec.ErrDot}
	}
	if err != nil {
		return "", fail(ErrAgentNotFound, message, err)
	}
	return path, nil
}

// spawn starts argv, whose first word is resolved, in a process group of its own
// with three pipes of ours. A failed start leaves nothing behind. ctx matters up
// to the start only.
func spawn(ctx context.Context, argv []string, dir string, env []string, log *slog.Logger) (*process, *Error) {
	if err := checkArgv(argv); err != nil {
		return nil, err
	}
	ours, theirs, err := openPipes()
	if err != nil {
		return nil, fail(ErrPortExit, "no pipe to the agent runtime could be made", err)
	}
	cmd := exec.Command(argv[0], argv[1:]...) // #nosec G204 -- running the configured command is the purpose
	cmd.Dir, cmd.Env = dir, env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs[0], theirs[1], theirs[2]
	widen(theirs[1])
	g, failure := start(ctx, cmd, log)
	closeAll(theirs)
	if failure != nil {
		closeAll(ours)
		return nil, failure
	}

	p := &process{
		pid: g.leader.Pid, stdin: ours[0], stdout: ours[1], stderr: ours[2], signal: g.signal,
	}
	p.exited, p.mayReap, p.reaped = wait(g)
	return p, nil
}

// wait starts the waiter, the one goroutine of a process. It ends once the leader
// has exited and the loop has closed mayReap; a leader that SIGKILL does not end
// leaves it behind. It holds no more than the group: the command and its
// environment are let go.
func wait(g *group) (<-chan struct{}, chan struct{}, <-chan exitStatus) {
	exited, mayReap, reaped := make(chan struct{}), make(chan struct{}), make(chan exitStatus, 1)
	go func() {
		foreign := g.await()
		close(exited)
		if !foreign {
			<-mayReap
		}
		reaped <- g.reap(foreign)
	}()
	return exited, mayReap, reaped
}

// openPipes makes the pipes for the descriptors 0, 1 and 2 of a process.
func openPipes() (ours, theirs [3]*os.File, err error) {
	for fd := range ours {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(ours)
			closeAll(theirs)
			return ours, theirs, err
		}
		ours[fd], theirs[fd] = r, w
		if fd == 0 {
			ours[fd], theirs[fd] = w, r
		}
	}
	return ours, theirs, nil
}

func closeAll(files [3]*os.File) {
	for _, f := range files {
		_ = f.Close() // a nil File only says so
	}
}

// reap collects the leader and releases what the group holds. A foreign leader
// was already reaped by somebody else: its number is not ours to wait for.
func (g *group) reap(foreign bool) exitStatus {
	defer g.release()
	if !foreign {
		if state, err := g.leader.Wait(); err == nil {
			return exitStatus{strings.TrimSuffix(state.String(), " (core dumped)"), state.ExitCode()}
		}
	}
	_ = g.leader.Release() // a Wait that fails keeps its descriptor
	return exitStatus{"exit status unknown", -1}
}

func startFailure(err error) *Error {
	return fail(ErrPortExit, "the agent runtime could not be started", err)
}
