package acp

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestWorkspace is SPEC 2.1, checked before anything is started and again
// before every launch.
func TestWorkspace(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Skip(err) // Windows wants a privilege for it
	}
	for workspace, text := range map[string]string{
		"":                         "the workspace is empty",
		"here":                     "the workspace is not an absolute path",
		filepath.Join(dir, "none"): "the workspace cannot be used",
		file:                       "the workspace is not a directory",
		link:                       "the workspace is a symbolic link",
	} {
		for _, ssh := range []*SSH{nil, {Host: "host"}} {
			_, err := new(Adapter).Start(t.Context(), Config{Workspace: workspace, Argv: []string{"none-such"}, SSH: ssh})
			wantError(t, err, ErrInvalidWorkspaceCWD, text)
		}
		bubble(t, func(t *testing.T, r *stage) {
			r.c.workspace = workspace
			wantError(t, r.tryStart(t.Context()), ErrInvalidWorkspaceCWD, text)
		})
	}
}

// TestRestarts is SPEC 9: a runtime is started again until its process carries
// the settings of the source that its handshake confirms, and no other's.
func TestRestarts(t *testing.T) {
	const gemini = "gemini-cli"
	always := func(name string) func(bool) string { return func(bool) string { return name } }
	contrary := func(armed bool) string {
		if armed {
			return "other"
		}
		return gemini
	}
	const added, removed = "so its token usage can be measured", "without usage settings meant for another runtime"
	tests := []struct {
		name, command string
		says          func(armed bool) string
		ssh           bool
		source        string
		logs          []string // of the restarts
	}{
		{"claimed and confirmed", "npx /x/gemini.js --acp", always(gemini), false, gemini, nil},
		{"neither", "other", always("other"), false, "", nil},
		{"claimed by mistake", "gemini", always("other"), false, "", []string{removed}},
		{"unclaimed", "./agent.sh", always(gemini), false, gemini, []string{added}},
		{"never the one it was started as", "./agent.sh", contrary, false, "", []string{added, removed}},
		{"nor the other way about", "gemini", contrary, false, "", []string{removed, added}},
		{"remote", "gemini", always(gemini), true, "", nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				r.c.words, r.c.ssh = strings.Fields(test.command), test.ssh
				starts, dir := 0, ""
				r.c.spawn = func(_ context.Context, _ []string, _ string, env []string, _ *slog.Logger) (*process, *Error) {
					if _, err := os.Stat(dir); dir != "" && !os.IsNotExist(err) {
						t.Errorf("the directory of the start before is still there: %v", err)
					}
					starts++
					const variable = "GEMINI_TELEMETRY_OUTFILE="
					i := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, variable) })
					if dir = ""; i >= 0 {
						dir = filepath.Dir(strings.TrimPrefix(env[i], variable))
					}
					p := newPeer(t)
					p.caps = `{"protocolVersion":1,"agentInfo":{"name":"` + test.says(i >= 0) + `"},"agentCapabilities":{}}`
					return p.proc, nil
				}
				r.start()
				if info := r.s.Info(); info.Source != test.source || info.TokenCounts != (test.source != "") {
					t.Errorf("%+v, want the source %q", info, test.source)
				}
				for _, text := range []string{added, removed} {
					want := 0
					if slices.Contains(test.logs, text) {
						want = 1
					}
					if n := r.log.count("INFO agent relaunched", text); n != want {
						t.Errorf("%d records %q, want %d", n, text, want)
					}
				}
				if want := len(test.logs) + 1; starts != want || starts > maxStarts {
					t.Errorf("%d starts, want %d", starts, want)
				}
				r.stopped(t.Context())
				if _, err := os.Stat(dir); dir != "" && !os.IsNotExist(err) {
					t.Errorf("a directory is left: %v", err)
				}
			})
		})
	}
}
