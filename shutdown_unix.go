//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package acp

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// closeUnblocks says that a pipe end may be closed under a blocked read or write.
const closeUnblocks = true

// group is a process group, named by its leader's number. The number cannot be
// recycled before the leader is reaped.
type group struct {
	leader *os.Process
	pid    int // leader.Pid becomes -1 when the waiter releases it
	watch  watch
}

func checkArgv([]string) *Error { return nil }

// start starts cmd as the leader of a new group.
func start(_ context.Context, cmd *exec.Cmd, _ *slog.Logger) (*group, *Error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, startFailure(err)
	}
	leader := cmd.Process
	w, err := openWatch(leader.Pid)
	if err != nil {
		_ = syscall.Kill(-leader.Pid, syscall.SIGKILL)
		_, _ = leader.Wait()
		return nil, startFailure(err)
	}
	return &group{leader, leader.Pid, w}, nil
}

// await blocks until the leader has exited and leaves it unreaped. foreign: it
// is no child of ours any more, somebody else has reaped it.
func (g *group) await() (foreign bool) { return g.watch.await() }

func (g *group) release() { g.watch.close() }

// signal sends SIGKILL, or what ends the group gracefully.
func (g *group) signal(kill bool) error {
	if kill {
		return g.send(syscall.SIGKILL)
	}
	if err := g.send(syscall.SIGTERM); err != nil {
		return err
	}
	// SPEC 10: a stopped process sees no SIGTERM before it goes on.
	return g.send(syscall.SIGCONT)
}

func (g *group) send(sig syscall.Signal) error {
	// Asked each time: somebody else may reap the leader at any moment, and its
	// number may then be another group's.
	if g.watch.foreign() {
		return nil
	}
	err := syscall.Kill(-g.pid, sig)
	if errors.Is(err, syscall.ESRCH) || sig == syscall.SIGKILL {
		// The leader may have moved to another group; its own number is still its.
		err = syscall.Kill(g.pid, sig)
	}
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	if runtime.GOOS == "darwin" && errors.Is(err, syscall.EPERM) {
		return nil // what macOS says of a group that holds zombies only
	}
	return err
}
