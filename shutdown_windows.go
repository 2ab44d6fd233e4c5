package acp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/windows"
)

// closeUnblocks says that a pipe end may be closed under a blocked read or write.
const closeUnblocks = false

func widen(*os.File) {}

// group is a job object with the leader and all its descendants. The leader's
// number cannot be recycled before its handle, held by os.Process, is released.
type group struct {
	leader *os.Process
	pid    uint32         // the leader's
	job    windows.Handle // 0: the assignment failed, there is only the leader
}

// checkArgv refuses what cmd.exe, which runs .cmd and .bat files, would read as
// more than an argument. No quoting is safe from it.
func checkArgv(argv []string) *Error {
	// CreateProcess ignores dots and spaces at the end of a name.
	switch strings.ToLower(filepath.Ext(strings.TrimRight(argv[0], ". "))) {
	case ".cmd", ".bat":
	default:
		return nil
	}
	for _, arg := range argv {
		if strings.ContainsAny(arg, "\"%!^&|<>\r\n") {
			return fail(ErrAgentNotFound, fmt.Sprintf("the batch file %q cannot be given %q", argv[0], arg), nil)
		}
	}
	return nil
}

// start starts cmd, suspended until it and so all its descendants are in the job.
func start(ctx context.Context, cmd *exec.Cmd, log *slog.Logger) (*group, *Error) {
	return startSuspended(ctx, cmd, log, newJob, resumeProcess)
}

// startSuspended is start over its two steps that can fail.
func startSuspended(ctx context.Context, cmd *exec.Cmd, log *slog.Logger,
	assign func(*os.Process) (windows.Handle, error), resume func(pid uint32) error) (*group, *Error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		CreationFlags: windows.CREATE_SUSPENDED | windows.CREATE_NEW_PROCESS_GROUP,
	}
	if err := cmd.Start(); err != nil {
		return nil, startFailure(err)
	}
	g := &group{leader: cmd.Process, pid: uint32(cmd.Process.Pid)} // #nosec G115 -- was a DWORD
	log = log.With("pid", g.pid)
	var err error
	if g.job, err = assign(g.leader); err != nil {
		log.Warn("process group assignment failed", "error", err)
	}
	// SPEC 2: a start whose context is done is ended before the process ran.
	if ctx.Err() != nil {
		g.abandon()
		return nil, fail(ErrTurnCancelled, "the start was cancelled", context.Cause(ctx))
	}
	if err := resume(g.pid); err != nil {
		log.Warn("process resume failed", "error", err)
		g.abandon()
		return nil, startFailure(err)
	}
	return g, nil
}

// abandon ends a process that has not run.
func (g *group) abandon() {
	_ = g.signal(true)
	_ = g.leader.Kill() // if the job could not be terminated
	g.reap(false)
}

// await blocks until the leader has exited. It holds the process handle, so that
// the number stays taken. foreign is never true: only we can release it.
func (g *group) await() (foreign bool) {
	_ = g.leader.WithHandle(func(h uintptr) {
		_, _ = windows.WaitForSingleObject(windows.Handle(h), windows.INFINITE)
	})
	return false
}

// release closes the job, which kills whatever is left in it.
func (g *group) release() {
	if g.job != 0 {
		_ = windows.CloseHandle(g.job)
	}
}

// signal terminates the job, or asks the group to end.
func (g *group) signal(kill bool) error {
	if !kill {
		return windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, g.pid)
	}
	if g.job != 0 {
		return windows.TerminateJobObject(g.job, 1)
	}
	err := g.leader.Kill()
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return nil // the second is what Windows says of one that has exited
	}
	return err
}

// newJob puts p into a job of its own that ends with its last handle.
func newJob(p *os.Process) (windows.Handle, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, os.NewSyscallError("CreateJobObject", err)
	}
	info := new(windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION)
	info.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	// By reflection, since this package imports no unsafe.
	size := uint32(reflect.TypeOf(*info).Size()) // #nosec G115 -- of a small struct
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation, reflect.ValueOf(info).Pointer(), size)
	runtime.KeepAlive(info)
	err = os.NewSyscallError("SetInformationJobObject", err)
	if err == nil {
		noHandle := p.WithHandle(func(h uintptr) {
			err = os.NewSyscallError("AssignProcessToJobObject", windows.AssignProcessToJobObject(job, windows.Handle(h)))
		})
		err = errors.Join(err, noHandle)
	}
	if err != nil {
		_ = windows.CloseHandle(job)
		return 0, err
	}
	return job, nil
}

// resumeProcess lets a process run that was started suspended.
func resumeProcess(pid uint32) error {
	id, err := mainThread(pid)
	if err != nil {
		return err
	}
	thread, err := windows.OpenThread(windows.THREAD_SUSPEND_RESUME, false, id)
	if err != nil {
		return os.NewSyscallError("OpenThread", err)
	}
	defer func() { _ = windows.CloseHandle(thread) }()
	_, err = windows.ResumeThread(thread)
	return os.NewSyscallError("ResumeThread", err)
}

// mainThread finds the first thread of a process; a suspended one has no other.
// os.StartProcess closes the handle that CreateProcess gave it.
func mainThread(pid uint32) (id uint32, err error) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPTHREAD, 0)
	if err != nil {
		return 0, os.NewSyscallError("CreateToolhelp32Snapshot", err)
	}
	defer func() { _ = windows.CloseHandle(snapshot) }()
	entry := new(windows.ThreadEntry32)
	entry.Size = uint32(binary.Size(entry)) // #nosec G115 -- of a small struct
	for err = windows.Thread32First(snapshot, entry); err == nil; err = windows.Thread32Next(snapshot, entry) {
		if entry.OwnerProcessID == pid {
			return entry.ThreadID, nil
		}
	}
	return 0, os.NewSyscallError("Thread32Next", err)
}
