package acp_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sortie-ai/acp"
)

// exampleConfig is a Config for the pretend runtime, which stands for any:
// Command: "gemini --acp" would do as well.
func exampleConfig() acp.Config {
	program, err := fakeAgent()
	if err != nil {
		panic(err)
	}
	return acp.Config{Workspace: scratch, Argv: []string{program, "-plain"}}
}

func Example() {
	ctx := context.Background()
	a, err := acp.New(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := a.Start(ctx, exampleConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = s.Stop(ctx) }()

	result, err := s.RunTurn(ctx, "hello", func(e acp.Event) {
		if e.Type == acp.Notification && e.Message != "" {
			fmt.Printf("message: %q\n", e.Message)
		}
		if e.Type == acp.ToolResult {
			fmt.Println("tool:", e.ToolName, e.Message)
		}
	})
	fmt.Println(result.ExitReason, result.StopReason, err)
	// Output:
	// message: "this session started with a declared capability gap in: token counts"
	// message: "You said \"hello\". "
	// tool: read Looked around
	// message: "I am a pretend runtime, so that is all I can do."
	// turn_completed end_turn <nil>
}

// A start says what the runtime is and what it lacks, or fails with a kind.
func ExampleAdapter_Start() {
	ctx := context.Background()
	a, err := acp.New(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := a.Start(ctx, exampleConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	info := s.Info()
	fmt.Println(info.AgentName, info.AgentVersion)
	fmt.Println("tool servers:", info.ToolServers, "token counts:", info.TokenCounts)
	fmt.Println("stopped:", s.Stop(ctx))

	c := exampleConfig()
	c.Workspace = "not/absolute"
	_, err = a.Start(ctx, c)
	var failure *acp.Error
	if errors.As(err, &failure) {
		fmt.Println(failure, "- retry:", failure.Kind.Retryable())
	}
	// Output:
	// fake-agent 1.0.0
	// tool servers: true token counts: false
	// stopped: <nil>
	// agent: invalid_workspace_cwd: the workspace is not an absolute path: not/absolute - retry: false
}

// A caller's own timeout ends a turn through its context, and the cause of the
// context tells it from a stop.
func ExampleSession_RunTurn() {
	a, err := acp.New(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := a.Start(context.Background(), exampleConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = s.Stop(context.Background()) }()

	tooLong := errors.New("the turn took too long")
	ctx, cancel := context.WithTimeoutCause(context.Background(), 300*time.Millisecond, tooLong)
	defer cancel()
	result, err := s.RunTurn(ctx, "slow, please", nil)
	fmt.Println(result.ExitReason, errors.Is(err, tooLong))

	// The session is as good as before.
	result, err = s.RunTurn(context.Background(), "long 3", nil)
	fmt.Println(result.ExitReason, err)
	// Output:
	// turn_cancelled true
	// turn_completed <nil>
}

// The event callback runs on RunTurn's goroutine, in wire order. With ChunkText
// it sees the reply as it streams.
func ExampleSession_RunTurn_events() {
	c := exampleConfig()
	c.ChunkText = true
	a, err := acp.New(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := a.Start(context.Background(), c)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = s.Stop(context.Background()) }()

	var reply strings.Builder
	_, err = s.RunTurn(context.Background(), "permission please", func(e acp.Event) {
		reply.WriteString(e.Text)
		switch e.Type {
		case acp.ToolResult:
			fmt.Println("tool", e.ToolName, "failed:", e.ToolError)
		case acp.TurnCompleted, acp.TurnFailed, acp.TurnCancelled, acp.TurnInputRequired:
			fmt.Println("over:", e.Type)
		}
	})
	fmt.Println(reply.String(), err)
	// Output:
	// tool read failed: true
	// over: turn_completed
	// You said "permission please". You did not let me look around. I am a pretend runtime, so that is all I can do. <nil>
}

// An earlier session is continued where the runtime can; else a new one begins,
// and Info says why.
func ExampleConfig_resume() {
	c := exampleConfig()
	c.Resume = "session-of-yesterday"
	a, err := acp.New(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := a.Start(context.Background(), c)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = s.Stop(context.Background()) }()

	fmt.Println(s.ID())
	fmt.Println(s.Info().Resumed, "-", s.Info().Continuation)
	// Output:
	// session-of-yesterday
	// true - session/load replayed the session
}

// Validate checks a configuration before anything is started.
func ExampleValidate() {
	for _, d := range acp.Validate(acp.Settings{
		Block:        map[string]any{"mcp_config": 7},
		Command:      "gemini --acp",
		SSH:          true,
		TokenCeiling: true,
	}) {
		fmt.Println(d.Severity, d.Check)
	}
	// Output:
	// error agent-client-protocol.mcp_config.wrong_type
	// warning agent.kind.no_usage_reporting
}

// The servers of an operator's file join those of the generated one, which is
// rewritten whole or not at all.
func ExampleMergeMCPConfig() {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	generated := dir + "/generated.json"
	for name, text := range map[string]string{
		generated:            `{"mcpServers":{"sortie-tools":{"command":"sortie","args":["mcp"]}}}`,
		dir + "/theirs.json": `{"mcpServers":{"search":{"command":"search-server"}}}`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(acp.MergeMCPConfig("theirs.json", dir, generated))
	merged, err := os.ReadFile(generated) // #nosec G304 -- just written
	fmt.Println(strings.Count(string(merged), `"command"`), err)
	// Output:
	// <nil>
	// 2 <nil>
}
