package interop

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coder "github.com/coder/acp-go-sdk"
	"github.com/sortie-ai/acp"
)

// coderAgent is an agent built on another implementation of the protocol. What
// it does in a turn is a word of the prompt.
type coderAgent struct {
	coder.Agent // nil: the methods that no test calls
	conn        *coder.AgentSideConnection

	mu     sync.Mutex
	cancel context.CancelFunc // of the turn in progress
}

func runCoderAgent() {
	a := &coderAgent{}
	a.conn = coder.NewAgentSideConnection(a, os.Stdout, os.Stdin)
	<-a.conn.Done()
}

func (a *coderAgent) Initialize(context.Context, coder.InitializeRequest) (coder.InitializeResponse, error) {
	return coder.InitializeResponse{
		ProtocolVersion: coder.ProtocolVersionNumber,
		AgentInfo:       &coder.Implementation{Name: "coder-agent", Version: "1.2.3"},
		AgentCapabilities: coder.AgentCapabilities{
			LoadSession: true,
			SessionCapabilities: coder.SessionCapabilities{
				Close: &coder.SessionCloseCapabilities{}, Resume: &coder.SessionResumeCapabilities{},
			},
		},
	}, nil
}

func (a *coderAgent) NewSession(context.Context, coder.NewSessionRequest) (coder.NewSessionResponse, error) {
	return coder.NewSessionResponse{SessionId: "coder-1"}, nil
}

func (a *coderAgent) LoadSession(ctx context.Context, p coder.LoadSessionRequest) (coder.LoadSessionResponse, error) {
	err := errors.Join(a.say(ctx, p.SessionId, coder.UpdateUserMessageText("an earlier question")),
		a.say(ctx, p.SessionId, coder.UpdateAgentMessageText("an earlier answer")))
	return coder.LoadSessionResponse{}, err
}

func (a *coderAgent) ResumeSession(context.Context, coder.ResumeSessionRequest) (coder.ResumeSessionResponse, error) {
	return coder.ResumeSessionResponse{}, nil
}

func (a *coderAgent) CloseSession(context.Context, coder.CloseSessionRequest) (coder.CloseSessionResponse, error) {
	return coder.CloseSessionResponse{}, nil
}

func (a *coderAgent) Cancel(context.Context, coder.CancelNotification) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cancel != nil {
		a.cancel()
	}
	return nil
}

func (a *coderAgent) say(ctx context.Context, id coder.SessionId, u coder.SessionUpdate) error {
	return a.conn.SessionUpdate(ctx, coder.SessionNotification{SessionId: id, Update: u})
}

func (a *coderAgent) Prompt(ctx context.Context, p coder.PromptRequest) (coder.PromptResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.mu.Lock()
	a.cancel = cancel
	a.mu.Unlock()
	err := a.act(ctx, p.SessionId, p.Prompt[0].Text.Text)
	if ctx.Err() != nil {
		return coder.PromptResponse{StopReason: coder.StopReasonCancelled}, nil
	}
	return coder.PromptResponse{StopReason: coder.StopReasonEndTurn}, err
}

func (a *coderAgent) act(ctx context.Context, id coder.SessionId, word string) error {
	text := func(s string) error { return a.say(ctx, id, coder.UpdateAgentMessageText(s)) }
	switch word {
	case "text":
		return errors.Join(a.say(ctx, id, coder.UpdateAgentThoughtText("hm")), text("one "), text("two "), text("three"))
	case "big":
		return text(strings.Repeat("C", 1<<20))
	case "tool":
		return errors.Join(
			a.say(ctx, id, coder.StartToolCall("t1", "reads", coder.WithStartKind(coder.ToolKindRead))),
			a.say(ctx, id, coder.UpdateToolCall("t1", coder.WithUpdateStatus(coder.ToolCallStatusCompleted), coder.WithUpdateTitle("has read"))))
	case "ask":
		answer, err := a.conn.RequestPermission(ctx, coder.RequestPermissionRequest{
			SessionId: id, ToolCall: coder.ToolCallUpdate{ToolCallId: "t2", Kind: coder.Ptr(coder.ToolKindEdit)},
			Options: []coder.PermissionOption{
				{Kind: coder.PermissionOptionKindAllowOnce, Name: "Yes", OptionId: "yes"},
				{Kind: coder.PermissionOptionKindRejectOnce, Name: "No", OptionId: "no"},
			}})
		switch {
		case err != nil:
			return err
		case answer.Outcome.Selected == nil:
			return text("cancelled")
		}
		return text("selected " + string(answer.Outcome.Selected.OptionId))
	case "file":
		_, err := a.conn.ReadTextFile(ctx, coder.ReadTextFileRequest{SessionId: id, Path: "/etc/hostname"})
		var refused *coder.RequestError
		if errors.As(err, &refused) && refused.Code == -32601 {
			return text("refused")
		}
		return text("answered")
	case "child":
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), roleName+"=stubborn")
		ready, err := child.StdoutPipe()
		if err != nil {
			return err
		}
		err = child.Start()
		_, ended := io.ReadAll(ready)
		return errors.Join(err, ended, text("started"))
	case "wait":
		if err := text("waiting"); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	return &coder.RequestError{Code: -32603, Message: "no such word", Data: map[string]any{"word": word}}
}

// runStubborn is a process that only a kill ends.
func runStubborn() {
	signal.Ignore(syscall.SIGTERM)
	_ = os.Stdout.Close() // tells that the signal is ignored by now
	time.Sleep(10 * time.Minute)
}

// TestCoderAgent drives an agent that is built on another implementation.
func TestCoderAgent(t *testing.T) {
	t.Parallel()
	defer table.time("coder's agent", "session", t)()
	b := newRoleBench(t, "coder")
	r := b.start(Posture{}, nil)
	if info := r.Info(); info.AgentName != "coder-agent" || info.AgentVersion != "1.2.3" {
		t.Errorf("it is %+v", info)
	}
	check := func(name string, ok func(turn) bool) {
		t.Helper()
		if tn := r.turn(b.ctx, name, nil); !ok(tn) {
			t.Errorf("%s: %+v, %v, text %.80q, %+v", name, tn.Result, tn.err, tn.text, tn.events)
		}
	}
	check("text", func(tn turn) bool {
		return tn.text == "one two three" && tn.message() == tn.text && len(tn.of(acp.OtherMessage)) == 1
	})
	check("big", func(tn turn) bool { return tn.text == strings.Repeat("C", 1<<20) })
	check("tool", func(tn turn) bool {
		results := tn.of(acp.ToolResult)
		return len(results) == 1 && results[0].ToolName == "read" && results[0].Message == "has read" && !results[0].ToolError
	})
	check("ask", func(tn turn) bool { return tn.text == "selected no" && tn.Refused == 1 })
	check("file", func(tn turn) bool { return tn.text == "refused" && len(tn.of(acp.Malformed)) == 1 })
	check("nothing of the kind", func(tn turn) bool {
		return tn.err != nil && tn.err.Kind == acp.ErrResponseError && strings.Contains(tn.err.Message, "no such word")
	})
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	tn := r.turn(ctx, "wait", func(e acp.Event) {
		if e.Text == "waiting" {
			cancel()
		}
	})
	if tn.ExitReason != acp.TurnCancelled || tn.StopReason != "cancelled" {
		t.Errorf("wait: %+v, %v", tn.Result, tn.err)
	}
	check("child", func(tn turn) bool { return tn.text == "started" && len(b.left()) == 2 })
	r.stop(nil, nil)
	if answer, ok := r.wire.answer("session/close"); !ok || answer.Error != nil {
		t.Errorf("session/close answered: %v, %s", ok, answer.Error)
	}

	again := b.start(Posture{}, func(c *acp.Config) { c.Resume = "coder-earlier" })
	if info := again.Info(); !info.Resumed || again.ID() != "coder-earlier" {
		t.Errorf("resumed %v: %s", info.Resumed, info.Continuation)
	}
	if tn := again.done("text"); tn.text != "one two three" {
		t.Errorf("the resumed turn says %q", tn.text)
	}
	again.stop(nil, nil)
}
