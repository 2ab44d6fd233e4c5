package acp

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// widen doubles the pipe of standard output, so that the runtime and we need not
// stop for each other at every 64 KiB. More would use up, with a few hundred
// sessions, what the kernel lets one user have in pipes.
func widen(f *os.File) {
	_, _ = unix.FcntlInt(f.Fd(), unix.F_SETPIPE_SZ, 2*largeBuf) // on failure it stays as it was
}

// watch tells of one child's exit without reaping it: through a pidfd, which
// waits in the runtime's poller and costs no thread.
type watch struct {
	pid   int
	pidfd *os.File // nil: this kernel has none, or forbids them
}

// openWatch opens a pidfd of its own. A duplicate of os.Process's would share
// non-blocking mode with it, and its Wait would then fail with EAGAIN.
func openWatch(pid int) (watch, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return watch{}, os.NewSyscallError("pidfd_open", err)
	}
	if err != nil {
		return watch{pid: pid}, nil
	}
	_ = unix.SetNonblock(fd, true) // on failure the file is not pollable, and await goes without
	return watch{pid, os.NewFile(uintptr(fd), "pidfd")}, nil
}

// await blocks until the child has exited, and leaves it a zombie. foreign: it
// was reaped by somebody else.
func (w watch) await() (foreign bool) {
	if w.pidfd != nil {
		var exited bool
		var err error
		conn, connErr := w.pidfd.SyscallConn()
		if connErr == nil {
			_ = conn.Read(func(fd uintptr) bool {
				exited, err = waitid(unix.P_PIDFD, int(fd), unix.WNOHANG)
				return exited || err != nil
			})
		}
		if exited || errors.Is(err, unix.ECHILD) {
			return !exited
		}
	}
	// No pidfd, or one that cannot be waited for (before Linux 5.4): this
	// blocks a thread.
	_, err := waitid(unix.P_PID, w.pid, 0)
	return err != nil
}

// foreign reports whether the child is no longer ours: reaped.
func (w watch) foreign() bool {
	err := error(nil)
	if w.pidfd == nil {
		_, err = waitid(unix.P_PID, w.pid, unix.WNOHANG)
		return errors.Is(err, unix.ECHILD)
	}
	conn, connErr := w.pidfd.SyscallConn()
	if connErr == nil {
		connErr = conn.Control(func(fd uintptr) {
			_, err = waitid(unix.P_PIDFD, int(fd), unix.WNOHANG)
		})
	}
	return connErr != nil || errors.Is(err, unix.ECHILD) // closed: the waiter is done
}

func (w watch) close() { _ = w.pidfd.Close() }

// waitid asks for an exited child without reaping it.
func waitid(idType, id, options int) (exited bool, err error) {
	for {
		var info unix.Siginfo // zeroed each time: Signo tells whether there is an answer
		err = unix.Waitid(idType, id, &info, unix.WEXITED|unix.WNOWAIT|options, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && info.Signo != 0, err
		}
	}
}
