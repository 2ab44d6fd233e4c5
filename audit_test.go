package acp

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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
		link + "/":                 "the workspace is a symbolic link",
		link + "/.":                "the workspace is a symbolic link",
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

// TestRedaction: text of the runtime in an error or a record is redacted.
func TestRedaction(t *testing.T) {
	const version = `{"protocolVersion":"hunter2"}`
	const named = `{"protocolVersion":1,"agentInfo":{"name":"hunter2","version":"hunter2"},"authMethods":[{"id":"hunter2"}]}`
	for what, caps := range map[string]string{"version": version, "names": named} {
		for phase, answers := range map[string]func(r *stage, w wire){
			"refused": func(r *stage, w wire) { r.refuse(w, `{"code":-32000,"message":"log in"}`) },
			"created": func(r *stage, w wire) { r.answer(w, `{"sessionId":"s1"}`) },
		} {
			t.Run(what+" "+phase, func(t *testing.T) {
				bubble(t, func(t *testing.T, r *stage) {
					r.c.redact = func(s string) string { return strings.ReplaceAll(s, "hunter2", "***") }
					r.caps = caps
					r.handle("session/new", func(w wire) { answers(r, w) })
					r.handle("session/prompt", func(w wire) {
						r.send(kind("hunter2", ""))
						r.stop(w, "hunter2")
					})
					err := r.tryStart(t.Context())
					if err == nil {
						o := r.turn(t.Context())
						if err = o.err; strings.Contains(o.res.StopReason, "hunter2") {
							t.Error("in the stop reason")
						}
					}
					if err == nil || strings.Contains(err.Error(), "hunter2") || r.log.count("hunter2") > 0 {
						t.Errorf("%v\n%s", err, strings.Join(r.log.records, "\n"))
					}
				})
			})
		}
	}
}

// TestLossRecords: what is lost leaves a record (SPEC 13).
func TestLossRecords(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(t *testing.T, r *stage)
		want []string
	}{
		"the connection between turns": {func(_ *testing.T, r *stage) { r.start(); r.exit("exit status 3", 3); <-r.s.Done() },
			[]string{"WARN agent connection lost", "exit status 3", "session_id=s1"}},
		"events between turns": {func(t *testing.T, r *stage) {
			r.began(func(w wire) { r.stop(w, "end_turn") })
			r.send(strings.Repeat("garbage\n", queueBound+7))
			synctest.Wait()
			r.turn(t.Context())
		}, []string{"DEBUG events were dropped", "count=7"}},
		"a capability at the start": {func(_ *testing.T, r *stage) { r.caps = `{"protocolVersion":1}`; r.start() },
			[]string{"DEBUG agent capability lowered", "capability=agent version"}},
		"a wait of the start": {func(t *testing.T, r *stage) { r.handle("session/new", nil); _ = r.tryStart(t.Context()) },
			[]string{"DEBUG agent did not answer in time", "method=session/new"}},
		"a turn's figure": {func(t *testing.T, r *stage) {
			r.c.readTimeout = time.Second
			r.began(func(w wire) { r.send(chunk("x")); r.stop(w, "end_turn") })
			r.s.do(func(*loop) { r.s.meter = &meter{gauge: slowGauge{time.Now().Add(time.Hour)}, delay: 6 * time.Second} })
			r.turn(t.Context())
		}, []string{"DEBUG agent turn is not fully measured"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				tc.do(t, r)
				if n := r.log.count(tc.want...); n != 1 {
					t.Errorf("%d records of %v\n%s", n, tc.want, strings.Join(r.log.records, "\n"))
				}
			})
		})
	}
}

// TestIDOutlivesTheConnection: the runtime created the session and was gone.
func TestIDOutlivesTheConnection(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		s, err := r.a.settleSource(t.Context(), r.c)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.newSession(t.Context(), sessionParams{Servers: []any{}}); err != nil {
			t.Fatal(err)
		}
		r.exit("exit status 0", 0)
		<-s.Done()
		s.ready(false, "", false)
		if s.ID() != "s1" || r.log.count("INFO agent implementation", "session_id=s1") != 1 {
			t.Errorf("the ID is %q", s.ID())
		}
	})
}

// TestHalfLine: where the front of what is kept is not the front of its line, a
// secret may have lost its first half, and the hook would not know it.
func TestHalfLine(t *testing.T) {
	hide := func(s string) string { return strings.ReplaceAll(s, "hunter2", "***") }
	for kept, want := range map[string]string{
		"ter2 is the key\nthe end": wordsStart + "the end",
		"ter2\n\nhunter2\n":        wordsStart + "***",
	} {
		if got := lastWords([]byte(kept), true, hide); got != want {
			t.Errorf("of %q remains %q, want %q", kept, got, want)
		}
	}
	if got := lastWords([]byte("front\nthe end"), false, hide); got != "front | the end" {
		t.Errorf("a whole output became %q", got)
	}
}
