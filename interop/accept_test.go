package interop

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sortie-ai/acp"
)

const linesName = "INTEROP_LINES"

// runLineAgent is a runtime that sends, in the turn whose prompt is the number
// N, line N of a file, and then ends the turn.
func runLineAgent() {
	text, err := os.ReadFile(os.Getenv(linesName))
	if err != nil {
		panic(err)
	}
	lines := strings.Split(string(text), "\n")
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var m struct {
			rpc
			Params struct{ Prompt []struct{ Text string } }
		}
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		result := ""
		switch m.Method {
		case "initialize":
			result = `{"protocolVersion":1,"agentInfo":{"name":"lines","version":"1"}}`
		case "session/new":
			result = `{"sessionId":"s"}`
		case "session/prompt":
			n, _ := strconv.Atoi(m.Params.Prompt[0].Text)
			fmt.Println(lines[n])
			if strings.Contains(lines[n], `"session/request_permission"`) {
				answer, _ := in.ReadString('\n')
				fmt.Fprint(os.Stderr, answer)
			}
			result = `{"stopReason":"end_turn"}`
		}
		if result != "" {
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", m.ID, result)
		}
	}
}

// expected says what an update gives by the package's own table, when what is
// optional and spoiled counts as absent.
func expected(u map[string]any) []acp.EventType {
	status, _ := u["status"].(string)
	content, _ := u["content"].(map[string]any)
	switch u["sessionUpdate"] {
	case "agent_message_chunk":
		if content["type"] != "text" {
			return []acp.EventType{acp.Malformed} // a chunk that is not rendered
		}
		if content["text"] == "" {
			return []acp.EventType{acp.Notification}
		}
		return []acp.EventType{acp.Notification, acp.Notification} // the sign of life and the message
	case "agent_thought_chunk", "plan":
		return []acp.EventType{acp.OtherMessage}
	case "tool_call", "tool_call_update":
		if status == "completed" || status == "failed" {
			return []acp.EventType{acp.ToolResult}
		}
		return nil
	case "user_message_chunk", "available_commands_update", "current_mode_update", "config_option_update", "session_info_update", "usage_update":
		return nil
	}
	return []acp.EventType{acp.Malformed} // a kind that this client does not know
}

// An instance is one generated update, whole or spoiled.
type instance struct {
	name   string
	update map[string]any
	vital  bool
	params map[string]any // instead of an update: a permission request
}

// generated returns instances of every kind of update.
func generated(t *testing.T, p *protocol) []instance {
	t.Helper()
	g := generator{p.defs}
	var all []instance
	for _, kind := range g.branches(p.defs["SessionUpdate"].(node)) {
		name, _ := g.flat(kind["properties"].(node)["sessionUpdate"].(node))["const"].(string)
		for i, v := range g.of(kind) {
			u := v.(map[string]any)
			all = append(all, instance{name: fmt.Sprintf("%s %d", name, i), update: u})
			raw, err := json.Marshal(u)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.check("SessionUpdate", raw); err != nil {
				t.Errorf("the generator is wrong: %s: %v", raw, err)
			}
			if i > 1 { // the first has the required fields, the second all
				continue
			}
			for _, f := range g.faults(kind, u, "", true) {
				all = append(all, instance{name: fmt.Sprintf("%s %d, %s %s", name, i, f.path, f.how), update: f.value.(map[string]any), vital: f.vital})
			}
		}
	}
	return all
}

// TestAccepts sends every kind of update that the schema allows, and each with
// one field spoiled: only a required field may spoil the message.
func TestAccepts(t *testing.T) {
	t.Parallel()
	defer table.time("schema", "updates", t)()
	all := generated(t, loadSchemas(t).sdk)
	calls := 0
	r := startLines(t, all, func(in instance) any {
		if _, ok := in.update["toolCallId"].(string); ok {
			calls++ // an id that has ended would count for nothing
			in.update["toolCallId"] = fmt.Sprintf("call %d", calls)
		}
		return map[string]any{"jsonrpc": "2.0", "method": "session/update", "params": map[string]any{"sessionId": "s", "update": in.update}}
	})
	r.done("0") // the first turn also tells what is missing
	vital := 0
	for i, in := range all {
		tn := r.turn(r.b.ctx, strconv.Itoa(i), nil)
		got := eventTypes(tn)
		want := expected(in.update)
		switch {
		case tn.err != nil:
			t.Fatalf("%s: %v", in.name, tn.err)
		case in.vital:
			vital++
			if len(got) > 0 && !slices.Equal(got, []acp.EventType{acp.Malformed}) && !slices.Equal(got, want) {
				t.Errorf("%s: %v, neither malformed nor %v", in.name, got, want)
			}
		case !slices.Equal(got, want):
			t.Errorf("%s: %v, want %v", in.name, got, want)
		}
	}
	t.Logf("%d instances, %d of them with a required field spoiled", len(all), vital)
	r.stop(nil, nil)
}

// startLines starts the line agent over instances.
func startLines(t *testing.T, all []instance, message func(instance) any) *run {
	t.Helper()
	var lines []string
	for _, in := range all {
		b, err := json.Marshal(message(in))
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(b))
	}
	name := filepath.Join(t.TempDir(), "lines")
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return newRoleBench(t, "lines", linesName+"="+name).start(Posture{}, nil)
}

// eventTypes returns what a turn brought but for its ends.
func eventTypes(tn turn) []acp.EventType {
	var all []acp.EventType
	for _, e := range tn.events[1 : len(tn.events)-1] {
		all = append(all, e.Type)
	}
	return all
}

// TestAcceptsPermission spoils each field of a permission request: whatever is
// wrong with it, it is never allowed, and only the options can end the turn.
func TestAcceptsPermission(t *testing.T) {
	t.Parallel()
	defer table.time("schema", "permissions", t)()
	p := loadSchemas(t).sdk
	g := generator{p.defs}
	def := p.defs["RequestPermissionRequest"].(node)
	var all []instance
	for i, v := range g.all(def) {
		params := v.(map[string]any)
		params["options"] = []any{
			map[string]any{"kind": "allow_once", "name": "Yes", "optionId": "yes"},
			map[string]any{"kind": "reject_once", "name": "No", "optionId": "no"},
		}
		all = append(all, instance{name: fmt.Sprintf("%d", i), params: params})
		if i > 1 {
			continue
		}
		for _, f := range g.faults(def, params, "", true) {
			all = append(all, instance{name: fmt.Sprintf("%d, %s %s", i, f.path, f.how), params: f.value.(map[string]any),
				vital: strings.HasPrefix(f.path, ".options")})
		}
	}
	id := 0
	r := startLines(t, all, func(in instance) any {
		id++
		return map[string]any{"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": in.params}
	})
	for i, in := range all {
		tn := r.turn(r.b.ctx, strconv.Itoa(i), nil)
		switch {
		case tn.ExitReason == acp.TurnCompleted && tn.Refused == 1:
		case in.vital && tn.ExitReason == acp.TurnInputRequired && tn.Refused == 0:
		default:
			t.Errorf("%s: %s, refused %d, %v", in.name, tn.ExitReason, tn.Refused, tn.err)
		}
	}
	r.stop(nil, nil)
	for _, m := range r.wire.messages("send") {
		if strings.Contains(string(m.Result), `"yes"`) {
			t.Errorf("allowed: %s", m.Result)
		}
	}
	t.Logf("%d instances", len(all))
}
