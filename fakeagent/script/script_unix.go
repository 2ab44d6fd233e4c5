//go:build unix

package script

import (
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// catchBrokenPipe makes a write to a closed standard output fail instead of
// ending the process.
func catchBrokenPipe() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}

// interruptible returns stdin so that closing it, or a deadline, ends a read
// that is under way. That needs non-blocking mode, which is only set on a pipe:
// a terminal is shared with others.
func interruptible(r io.ReadCloser) io.ReadCloser {
	f, ok := r.(*os.File)
	if !ok || f != os.Stdin {
		return r
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return r
	}
	fd := f.Fd()
	if err := syscall.SetNonblock(int(fd), true); err != nil {
		return r
	}
	return os.NewFile(fd, f.Name())
}

func gracefulSignals() []os.Signal { return []os.Signal{syscall.SIGTERM} }

// escape puts a child into a session of its own.
func escape(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// stopSelf returns when the process has been continued: the signal may take
// effect only after kill has returned.
func stopSelf() error {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		return err
	}
	<-continued
	return nil
}

func killSelf() error {
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		return err
	}
	select {} // it comes
}
