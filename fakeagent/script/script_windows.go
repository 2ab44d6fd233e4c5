package script

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
)

func catchBrokenPipe() {}

func interruptible(r io.ReadCloser) io.ReadCloser { return r }

// CTRL_BREAK arrives as os.Interrupt.
func gracefulSignals() []os.Signal { return []os.Signal{os.Interrupt, syscall.SIGTERM} }

func escape(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

func stopSelf() error { return errors.New("a process cannot be stopped on Windows") }

func killSelf() error {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	return self.Kill()
}
