//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package acp

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func widen(*os.File) {} // these pipes grow by themselves

// watch tells of one child's exit without reaping it: through a kqueue, at the
// cost of a thread.
type watch struct {
	kqueue int
	exited bool // was a zombie already when the watch was opened
}

func openWatch(pid int) (watch, error) {
	kq, err := unix.Kqueue()
	if err != nil {
		return watch{}, os.NewSyscallError("kqueue", err)
	}
	unix.CloseOnExec(kq)
	var change unix.Kevent_t
	unix.SetKevent(&change, pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	change.Fflags = unix.NOTE_EXIT
	_, err = kevent(kq, []unix.Kevent_t{change}, nil)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		_ = unix.Close(kq)
		return watch{}, os.NewSyscallError("kevent", err)
	}
	return watch{kq, err != nil}, nil
}

// await blocks until the child has exited. A kqueue does not tell a zombie from
// a child that somebody else reaped: foreign is never true here.
func (w watch) await() (foreign bool) {
	for n := 0; n == 0 && !w.exited; {
		var err error
		n, err = kevent(w.kqueue, nil, make([]unix.Kevent_t, 1))
		w.exited = err != nil
	}
	return false
}

func (w watch) foreign() bool { return false }

func (w watch) close() { _ = unix.Close(w.kqueue) }

func kevent(kq int, changes, events []unix.Kevent_t) (int, error) {
	for {
		n, err := unix.Kevent(kq, changes, events, nil)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
