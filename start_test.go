package acp

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// later does f after a while, if the test lasts as long.
func (p *peer) later(d time.Duration, f func()) {
	over := p.t.Context().Done()
	go func() {
		select {
		case <-time.After(d):
			f()
		case <-over:
		}
	}()
}

// phases are the requests of a start that creates a session.
var phases = []string{"initialize", "session/new"}

// TestStartFails is the table of SPEC 2, for each request of the start.
func TestStartFails(t *testing.T) {
	tests := []struct {
		name string
		do   func(r *stage, w wire) // with the request
		kind ErrorKind
		text string
		took time.Duration // beyond the timeout of the phase if negative
	}{
		{"an exit", func(r *stage, _ wire) { r.say("no such model\n"); r.exit("exit status 3", 3) },
			ErrPortExit, "agent: port_exit: the agent runtime exited before responding: exit status 3: no such model", 0},
		{"exit 0", func(r *stage, _ wire) { r.exit("exit status 0", 0) },
			ErrPortExit, "the agent runtime exited before responding: exit status 0: no standard-error output", 0},
		{"exit 127", func(r *stage, _ wire) { r.say("sh: gone: not found"); r.exit("exit status 127", 127) },
			ErrPortExit, "the agent runtime exited before responding: exit status 127: sh: gone: not found", 0},
		{"killed by another", func(r *stage, _ wire) { r.exit("signal: killed", -1) },
			ErrPortExit, "the agent runtime exited before responding: signal: killed", 0},
		{"the stream ends and the process lives on", func(r *stage, _ wire) { r.hangUp() },
			ErrPortExit, "agent: port_exit: agent connection ended before responding", 5 * time.Second},
		{"the exit comes inside the 5 s behind the stream's end", func(r *stage, _ wire) {
			r.hangUp()
			r.later(5*time.Second-1, func() { r.exit("exit status 9", 9) })
		}, ErrPortExit, "exited before responding: exit status 9", 5*time.Second - 1},
		{"the exit comes after them", func(r *stage, _ wire) {
			r.hangUp()
			r.signalled(func(bool) {})
			r.later(5*time.Second+1, func() { r.exit("exit status 9", 9) })
		}, ErrPortExit, "agent connection ended before responding", 5*time.Second + 1},
		{"a descendant holds the stream", func(r *stage, _ wire) {
			r.say("bye\n")
			r.signalled(func(bool) {})
			r.die("exit status 4", 4)
		}, ErrPortExit, "exited before responding: exit status 4: bye", 7 * time.Second}, // the drain bound, then the tail's
		{"no answer", func(r *stage, _ wire) { r.say("thinking\n") },
			ErrResponseTimeout, ": no answer in time: thinking", -1},
		{"authentication is asked for", func(r *stage, w wire) { r.refuse(w, `{"code":-32000,"message":"log in"}`) },
			ErrCredentialUnverified, "methods offered: ", 0},
		{"another error", func(r *stage, w wire) { r.refuse(w, `{"code":-32603,"message":"broken","data":{"a": [1]}}`) },
			ErrResponseError, `: error -32603: broken: {"a":[1]}`, 0},
		{"error data that is text", func(r *stage, w wire) { r.refuse(w, `{"code":7,"message":"broken","data":"by\u001b[1m you"}`) },
			ErrResponseError, `: error 7: broken: by you`, 0},
		{"an answer with result and error", func(r *stage, w wire) {
			r.send(`{"id":` + string(w.ID) + `,"result":{},"error":{"code":1,"message":"m"}}`)
		}, ErrResponseError, "neither a result nor an error", 0},
		{"an answer with neither", func(r *stage, w wire) { r.send(`{"id":` + string(w.ID) + `,"error":null}`) },
			ErrResponseError, "neither a result nor an error", 0},
		{"an error that is no object", func(r *stage, w wire) { r.send(`{"id":` + string(w.ID) + `,"error":"no"}`) },
			ErrResponseError, "neither a result nor an error", 0},
		{"a line over the bound", func(r *stage, _ wire) { r.send(strings.Repeat("x", r.c.maxLine+1)) },
			ErrResponseError, "the agent sent a line over the bound", 0},
		{"it asks and never reads", func(r *stage, _ wire) { r.asksInVain() },
			ErrPortExit, "the agent does not read what it is sent", 2500 * time.Millisecond}, // half of the window for the queue
	}
	for _, tc := range tests {
		for _, phase := range phases {
			t.Run(tc.name+" at "+phase, func(t *testing.T) {
				bubble(t, func(t *testing.T, r *stage) {
					r.handle(phase, func(w wire) { tc.do(r, w) })
					began := time.Now()
					err := r.tryStart(t.Context())
					wantError(t, err, tc.kind, tc.text)
					want := tc.took
					if want < 0 {
						want = map[string]time.Duration{"initialize": r.c.handshakeTimeout, "session/new": r.c.readTimeout}[phase]
					}
					wantTook(t, time.Since(began), want)
				})
			})
		}
	}
}

// TestInitializeAnswers are the answers that make or break a handshake.
func TestInitializeAnswers(t *testing.T) {
	tests := []struct {
		name, answer string
		kind         ErrorKind
		text         string
	}{
		{"version 1", `{"protocolVersion":1}`, "", ""},
		{"version 1 with a fraction", `{"protocolVersion":1.0}`, "", ""},
		{"version 2", `{"protocolVersion":2}`, ErrResponseError, "protocol version 2, this client speaks 1"},
		{"version absent", `{}`, ErrResponseError, "protocol version none, this client speaks 1"},
		{"version null", `{"protocolVersion":null}`, ErrResponseError, "protocol version none"},
		{"version no number", `{"protocolVersion":"1"}`, ErrResponseError, `protocol version "1"`},
		{"result null", `null`, ErrResponseError, "protocol version none"},
		{"result no object", `"hello"`, ErrResponseError, "protocol version none"},
		{"optional members of other types", `{"protocolVersion":1,"agentInfo":7,"agentCapabilities":[],"authMethods":"x"}`, "", ""},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				r.caps = tc.answer
				wantError(t, r.tryStart(t.Context()), tc.kind, tc.text)
			})
		})
	}
}

// TestNewAnswers are answers to session/new.
func TestNewAnswers(t *testing.T) {
	tests := []struct {
		name, answer string
		kind         ErrorKind
	}{
		{"an id", `{"sessionId":"a b\u001b"}`, ""},
		{"no id", `{}`, ErrResponseError},
		{"null", `null`, ErrResponseError},
		{"an empty id", `{"sessionId":""}`, ErrResponseError},
		{"a number as id", `{"sessionId":7}`, ErrResponseError},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				r.handle("session/new", func(w wire) { r.answer(w, tc.answer) })
				wantError(t, r.tryStart(t.Context()), tc.kind)
				if r.s != nil && r.s.ID() != "a b\x1b" {
					t.Errorf("the session ID is %q: it leaves exact", r.s.ID())
				}
			})
		})
	}
}

// TestAuthMethods: the message of a refused start names what was offered.
func TestAuthMethods(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.caps = `{"protocolVersion":1,"authMethods":[{"id":"key","name":"API key"},{"id":"oauth"},{"name":"\u001b[31mred"}` +
			strings.Repeat(`,{"id":"`+strings.Repeat("x", 300)+`"}`, 40) + `]}`
		r.handle("session/new", func(w wire) { r.refuse(w, `{"code":-32000,"message":"log in"}`) })
		err := r.tryStart(t.Context())
		wantError(t, err, ErrCredentialUnverified, "API key (key), oauth, red, xxx", "log in")
		if n := strings.Count(err.Error(), strings.Repeat("x", 200)); n != 13 { // 16 methods, three of them before these
			t.Errorf("%d cut names", n)
		}
		if strings.Contains(err.Error(), strings.Repeat("x", 201)) {
			t.Error("a name was not cut")
		}
	})
}

// TestLastWords is the cause of an early exit report.
func TestLastWords(t *testing.T) {
	line := strings.Repeat("é", 500) + "\n"
	tests := []struct{ name, stderr, want string }{
		{"nothing", "", "no standard-error output"},
		{"nothing readable", " \n\x1b[0m\n\t\r\n\x00", "no standard-error output"},
		{"lines are joined", "one\n\n  two\r\nthree", "one | two | three"},
		{"sequences and controls go", "\x1b[31mred\x1b[0m\x07 \x1b]0;title\x07x\ty\x7f\u009b1mz\u202e", "red x yz"},
		{"invalid UTF-8", "a\xffb", "a\uFFFDb"},
		{"secrets", "key=hunter2 again hunter2", "key=*** again ***"},
		{"secrets of several lines", "{\n\t\"a\":\t\"walrus\"\n}", "{ | [redacted] | }"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				r.c.redact = func(s string) string { return strings.ReplaceAll(s, "hunter2", "***") }
				r.c.servers = []mcpServer{{env: []mcpPair{{"JSON", "{\n\t\"a\":\t\"walrus\"\n}"}}}}
				r.c.hideSecrets(Config{})
				r.handle("initialize", func(wire) { r.say(tc.stderr); r.exit("exit status 1", 1) })
				err := r.tryStart(t.Context())
				var e *Error
				if !errors.As(err, &e) || e.Err == nil || e.Err.Error() != tc.want {
					t.Errorf("the error is %q, want the cause %q", err, tc.want)
				}
			})
		})
	}
	for _, n := range []int{7, 8, 9, 100, 300} { // below and above 8 KiB, and above what is kept
		bubble(t, func(t *testing.T, r *stage) {
			r.handle("initialize", func(wire) { r.say(strings.Repeat(line, n) + "the end"); r.exit("exit status 1", 1) })
			var e *Error
			if !errors.As(r.tryStart(t.Context()), &e) {
				t.Fatal("no error")
			}
			words := e.Err.Error()
			cut := strings.HasPrefix(words, "[earlier output omitted] ")
			if len(words) > 8<<10 || len(words) < 7000 || !strings.HasSuffix(words, "é | the end") || cut != (n > 8) ||
				strings.Contains(words, "\uFFFD") {
				t.Errorf("%d lines: %d bytes, %.40q", n, len(words), words)
			}
		})
	}
}

// TestSSHExit: a remote launch tells the connection's failure from the
// runtime's exit.
func TestSSHExit(t *testing.T) {
	tests := []struct {
		name   string
		status exitStatus
		start  string
		turn   string
	}{
		{"255", exitStatus{"exit status 255", 255}, "agent: port_exit: the SSH connection failed: no route", "agent: port_exit: the SSH connection failed: no route"},
		{"127", exitStatus{"exit status 127", 127}, "exited before responding: exit status 127: no route", "the agent connection was lost: exit status 127: no route"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			fails := func(r *stage) { r.say("no route\n"); r.exit(tc.status.text, tc.status.code) }
			bubble(t, func(t *testing.T, r *stage) {
				r.c.ssh = true
				r.handle("initialize", func(wire) { fails(r) })
				wantError(t, r.tryStart(t.Context()), ErrPortExit, tc.start)
			})
			bubble(t, func(t *testing.T, r *stage) {
				r.c.ssh = true
				r.began(func(wire) { fails(r) })
				wantError(t, r.turn(t.Context()).err, ErrPortExit, tc.turn)
			})
		})
	}
}

// TestPreamble: it goes first, and not into the transcript.
func TestPreamble(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		var first string
		r.c.preamble = []byte(`{"jsonrpc":"2.0","method":"secret"}` + "\n")
		r.handle("secret", func(w wire) { first = w.raw })
		var rec strings.Builder
		r.c.record = &rec
		r.start()
		if err := r.s.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if first == "" || r.got[0].raw != first {
			t.Error("the preamble did not come first")
		}
		if strings.Contains(rec.String(), "secret") || !strings.Contains(rec.String(), "initialize") {
			t.Errorf("the transcript is %s", &rec)
		}
	})
}

// TestStartContext: the caller's context ends a start in any phase, and
// nothing after it.
func TestStartContext(t *testing.T) {
	cause := errors.New("enough")
	for _, phase := range phases {
		t.Run("during "+phase, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				ctx, cancel := context.WithCancelCause(t.Context())
				r.handle(phase, func(wire) { r.later(time.Second, func() { cancel(cause) }) })
				r.signalled(func(kill bool) {
					if kill {
						r.exit("signal: killed", -1)
					}
				})
				began := time.Now()
				err := r.tryStart(ctx)
				wantError(t, err, ErrTurnCancelled)
				if !errors.Is(err, cause) {
					t.Errorf("%v does not unwrap to the cause", err)
				}
				// SPEC 2: torn down with the full window, whatever became of the context.
				wantTook(t, time.Since(began), time.Second+r.c.grace)
			})
		})
	}
	t.Run("before", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(cause)
			err := r.tryStart(ctx)
			wantError(t, err, ErrTurnCancelled)
			if !errors.Is(err, cause) || len(r.sent("initialize")) > 0 {
				t.Errorf("%v; sent: %v", err, r.got)
			}
		})
	})
	t.Run("after", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			ctx, cancel := context.WithCancel(t.Context())
			r.handle("session/prompt", func(w wire) { r.stop(w, "end_turn") })
			if err := r.tryStart(ctx); err != nil {
				t.Fatal(err)
			}
			cancel()
			synctest.Wait()
			wantError(t, r.turn(t.Context()).err, "")
		})
	})
}
