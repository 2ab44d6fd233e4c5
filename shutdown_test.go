package acp

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	program := "program"
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	for _, name := range []string{program, filepath.Join("bin", program)} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, 0o700); err != nil { // #nosec G306 -- a program
			t.Fatal(err)
		}
	}
	if err := os.WriteFile("text", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	abs := filepath.Join(dir, "bin", program)
	tests := []struct {
		name, command, path, godebug string
		want                         string // empty: agent_not_found
		cause                        error  // of that, if it matters
	}{
		{name: "from PATH", command: program, path: filepath.Join(dir, "bin"), want: abs},
		{name: "not in PATH", command: "program-of-nobody", path: dir, cause: exec.ErrNotFound},
		{name: "relative PATH entry", command: program, path: "bin", cause: exec.ErrDot},
		{name: "relative PATH entry, dot allowed", command: program, path: "bin", godebug: "execerrdot=0", cause: exec.ErrDot},
		{name: "working directory in PATH", command: program, path: ".", cause: exec.ErrDot},
		{name: "with a slash, relative", command: filepath.Join("bin", program), want: abs},
		{name: "with a slash, from the parent", command: filepath.Join("..", filepath.Base(dir), "bin", program), want: abs},
		{name: "absolute", command: abs, want: abs},
		{name: "empty"},
		{name: "white space", command: " "},
		{name: "absolute, missing", command: filepath.Join(dir, "none")},
		{name: "directory", command: filepath.Join(dir, "bin")},
		{name: "not executable", command: filepath.Join(dir, "text")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("PATH", tt.path)
			t.Setenv("NoDefaultCurrentDirectoryInExePath", "1") // Windows would look there ahead of it
			if tt.godebug != "" {
				t.Setenv("GODEBUG", tt.godebug)
			}
			got, err := resolve(tt.command)
			if tt.want != "" {
				if err != nil || got != tt.want {
					t.Fatalf("got %q, %v; want %q", got, err, tt.want)
				}
				return
			}
			if err == nil || err.Kind != ErrAgentNotFound {
				t.Fatalf("got %q, %v; want agent_not_found", got, err)
			}
			if tt.cause != nil && !errors.Is(err, tt.cause) {
				t.Errorf("cause is %v, want %v", err.Err, tt.cause)
			}
		})
	}
}
