//go:build unix

package acp

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// What stands in a file's place without being one is neither followed nor
// waited for.
func TestNoFile(t *testing.T) {
	for _, tt := range []struct {
		name string
		put  func(name, target string) error
	}{
		{"a symbolic link", func(name, target string) error { return os.Symlink(target, name) }},
		{"a relative link", func(name, target string) error {
			return os.Symlink(filepath.Base(target), name)
		}},
		{"a FIFO", func(name, _ string) error { return syscall.Mkfifo(name, 0o600) }},
		{"a directory", func(name, _ string) error { return os.Mkdir(name, 0o700) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.begin("s")
			r.chat("keep.txt", chatHeader+chatLine("1", 1, "m"))
			target := filepath.Join(r.dir, "target")
			appendFile(t, target, answerRecord(1))
			for name, target := range map[string]string{
				filepath.Join(r.dir, telemetryFile): target,
				r.chatPath("a.jsonl"):               r.chatPath("keep.txt"),
			} {
				if err := tt.put(name, target); err != nil {
					t.Fatal(err)
				}
			}
			if _, _, err := openPlain(r.root, telemetryFile, 0); err != errNotPlain {
				t.Errorf("opened: %v", err)
			}
			if got := r.read(); got != (figure{}) {
				t.Errorf("telemetry: %+v", got)
			}
			if got := r.readOther(); got != (figure{}) {
				t.Errorf("journal: %+v", got)
			}
		})
	}
}

func TestLinkedDirectories(t *testing.T) {
	for _, depth := range []int{1, 2, 3, 4} { // .gemini, tmp, project, chats
		r := newRig(t)
		elsewhere := &rig{t: t, home: t.TempDir()}
		elsewhere.chat("a.jsonl", chatHeader+chatLine("1", 1, "m"))
		parts := []string{".gemini", "tmp", "project", "chats"}
		here := filepath.Join(append([]string{r.home}, parts[:depth]...)...)
		there := filepath.Join(append([]string{elsewhere.home}, parts[:depth]...)...)
		if err := os.MkdirAll(filepath.Dir(here), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(there, here); err != nil {
			t.Fatal(err)
		}
		r.begin("s")
		if n := len(r.chats.files); n > 0 {
			t.Errorf("%s is a link: %d files", here, n)
		}
	}
}

// Inside the home no link is followed below tmp either.
func TestLinkedProject(t *testing.T) {
	r := newRig(t)
	r.chat("a.jsonl", chatHeader+chatLine("1", 1, "m"))
	tmp := filepath.Join(r.home, ".gemini", "tmp")
	if err := os.Rename(filepath.Join(tmp, "project"), filepath.Join(r.home, "elsewhere")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../elsewhere", filepath.Join(tmp, "project")); err != nil {
		t.Fatal(err)
	}
	r.begin("s")
	if n := len(r.chats.files); n > 0 {
		t.Errorf("%d files", n)
	}
}

// The directory of the telemetry is the one that was made, whatever stands
// under its name later; only that name is removed.
func TestSwappedDirectory(t *testing.T) {
	r := newRig(t)
	elsewhere := t.TempDir()
	appendFile(t, filepath.Join(elsewhere, telemetryFile), answerRecord(1))
	if err := os.Remove(r.dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, r.dir); err != nil {
		t.Fatal(err)
	}
	r.begin("s")
	if r.log.seen != nil {
		t.Error("a file was read elsewhere")
	}
	if err := r.discard(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(elsewhere, telemetryFile)); err != nil {
		t.Error(err)
	}
}
