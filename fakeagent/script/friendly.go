package script

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"
)

// friendly is the runtime that plays no file. Words in a prompt choose what it
// does:
//
//	permission   asks for a permission before it runs its tool
//	ask          asks a question that needs a person
//	slow         streams a word every 100 ms for ten minutes
//	long N       streams N words
//	refuse       ends with the stop reason refusal
//	fail         answers with an error
//	crash        exits in the middle of the answer
type friendly struct {
	*wire
	surprises bool // adds what the protocol allows and nobody may rely on the absence of
	sent      int  // messages sent, which varies the surprises
	sessions  map[string][]turn
}

// turn is what a session/load tells again.
type turn struct{ prompt, answer string }

func newFriendly(w *wire, surprises bool) *friendly {
	return &friendly{wire: w, surprises: surprises, sessions: make(map[string][]turn)}
}

func (f *friendly) run() int {
	err := f.serve("")
	var exit exitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	case errors.Is(err, errGone):
		return statusGone
	}
	complain(f.err, "fakeagent: %v", err)
	return statusFailed
}

// serve answers until the end of input, or until a message with the method
// until has come, which it leaves.
func (f *friendly) serve(until string) error {
	for {
		m, err := f.in.next(0, anyMessage)
		if errors.Is(err, errGone) {
			return nil
		}
		if err != nil {
			return err
		}
		if until != "" && m.Method == until {
			f.in.putBack(m)
			return nil
		}
		if m.reply() || len(m.ID) == 0 {
			continue // nothing is open, and no notification matters outside a turn
		}
		if err := f.answer(m); err != nil {
			return err
		}
	}
}

// params is what the friendly runtime reads of a request's.
type params struct {
	SessionID string `json:"sessionId"`
	Prompt    []struct{ Text string }
}

func (f *friendly) answer(m *message) error {
	var p params
	if err := json.Unmarshal(m.Params, &p); len(m.Params) > 0 && err != nil {
		return f.refuse(m.ID, -32602, "Invalid params")
	}
	_, known := f.sessions[p.SessionID]
	switch m.Method {
	case "initialize":
		return f.result(m.ID, initializeResult)
	case "session/new":
		id := "fake-" + strconv.Itoa(len(f.sessions)+1)
		f.sessions[id] = nil
		return f.result(m.ID, `{"sessionId":"`+id+`"}`)
	case "session/load":
		return f.load(m.ID, p.SessionID)
	case "session/prompt":
		if !known {
			return f.refuse(m.ID, -32602, "no such session")
		}
		return f.prompt(m.ID, p)
	case "session/close", "session/delete":
		return f.result(m.ID, `{}`)
	}
	return f.refuse(m.ID, -32601, "Method not found")
}

const initializeResult = `{"protocolVersion":1,"agentCapabilities":{"loadSession":true,` +
	`"promptCapabilities":{"image":false},"mcpCapabilities":{"http":true,"sse":false},` +
	`"sessionCapabilities":{"close":{},"delete":{}}},` +
	`"agentInfo":{"name":"fake-agent","title":"Fake Agent","version":"1.0.0"},"authMethods":[]}`

// load tells a session again: what was said in this process, else a canned turn.
func (f *friendly) load(id json.RawMessage, session string) error {
	if session == "" {
		return f.refuse(id, -32602, "no such session")
	}
	turns := f.sessions[session]
	if len(turns) == 0 {
		turns = []turn{{"What did we do last time?", "We said hello."}}
	}
	f.sessions[session] = turns
	for _, t := range turns {
		if err := f.update(session, chunk("user_message_chunk", t.prompt)...); err != nil {
			return err
		}
		if err := f.update(session, chunk("agent_message_chunk", t.answer)...); err != nil {
			return err
		}
	}
	return f.result(id, `{}`)
}

// pace is the time between two words: enough to be seen.
const pace = 15 * time.Millisecond

func (f *friendly) prompt(id json.RawMessage, p params) error {
	text := ""
	if len(p.Prompt) > 0 {
		text = p.Prompt[0].Text
	}
	words := strings.Fields(strings.ToLower(text))
	has := func(word string) bool {
		for _, w := range words {
			if strings.Trim(w, ".,!?") == word {
				return true
			}
		}
		return false
	}
	t := &talk{friendly: f, session: p.SessionID, pace: pace}
	switch {
	case has("refuse"):
		return f.result(id, `{"stopReason":"refusal"}`)
	case has("fail"):
		return f.refuse(id, -32603, "this prompt asked for a failure")
	case has("crash"):
		t.say("This goes ")
		complain(f.err, "fakeagent: crashing, as the prompt asked")
		return exitStatus(statusCrash)
	case has("slow"):
		t.pace = 100 * time.Millisecond
		t.say(strings.Repeat("slowly ", 6000))
	case has("long"):
		t.pace = 0
		t.say(strings.Repeat("word ", numberAfter(words, "long")))
	default:
		t.chat(text, has("permission"), has("ask"))
	}
	if t.err != nil {
		return t.err
	}
	f.sessions[p.SessionID] = append(f.sessions[p.SessionID], turn{text, t.said.String()})
	if t.cancelled {
		return f.result(id, `{"stopReason":"cancelled"}`)
	}
	return f.result(id, `{"stopReason":"end_turn"}`)
}

func numberAfter(words []string, word string) int {
	for i, w := range words[:max(len(words)-1, 0)] {
		if n, err := strconv.Atoi(words[i+1]); w == word && err == nil {
			return n
		}
	}
	return 1000
}
