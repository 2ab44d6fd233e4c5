package script

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// talk is one turn of the friendly runtime. After an error, or once the client
// has cancelled, it says no more.
type talk struct {
	*friendly
	session   string
	pace      time.Duration
	said      strings.Builder
	cancelled bool
	err       error
}

func (t *talk) over() bool { return t.cancelled || t.err != nil }

// chat is the ordinary turn: some words, a pretend tool, some more words.
func (t *talk) chat(prompt string, permission, ask bool) {
	t.surprise()
	t.say(fmt.Sprintf("You said %q. ", shorten(prompt)))
	tool := `"toolCallId":"tool-1"`
	t.tell(`"sessionUpdate":"tool_call"`, tool, `"title":"Look around"`, `"kind":"read"`, `"status":"pending"`)
	status := `"status":"completed"`
	if permission {
		outcome := t.request("session/request_permission",
			`"toolCall":{"toolCallId":"tool-1"}`,
			`"options":[{"optionId":"yes","name":"Allow","kind":"allow_once"},`+
				`{"optionId":"no","name":"Reject","kind":"reject_once"}]`)
		if outcome != "yes" {
			status = `"status":"failed"`
		}
	}
	if ask {
		t.request("elicitation/create", `"mode":"form"`, `"message":"What is your name?"`)
	}
	t.wait(t.pace)
	t.tell(`"sessionUpdate":"tool_call_update"`, tool, `"title":"Looked around"`, status)
	if status == `"status":"failed"` {
		t.say("You did not let me look around. ")
	}
	t.say("I am a pretend runtime, so that is all I can do.")
}

func shorten(s string) string {
	r := []rune(strings.Join(strings.Fields(s), " "))
	if len(r) > 60 {
		return string(r[:60]) + "…"
	}
	return string(r)
}

// say streams text word by word.
func (t *talk) say(text string) {
	for word := range strings.SplitAfterSeq(text, " ") {
		if word == "" {
			continue
		}
		t.tell(chunk("agent_message_chunk", word)...)
		if t.over() {
			return
		}
		t.said.WriteString(word)
		t.wait(t.pace)
	}
}

func (t *talk) tell(members ...string) {
	if !t.over() {
		t.err = t.update(t.session, members...)
	}
}

// wait lets time pass in which the client may cancel. A wait of nothing still
// looks.
func (t *talk) wait(d time.Duration) {
	for end := time.Now().Add(d); !t.over(); {
		_, err := t.listen(max(time.Until(end), 1))
		if errors.Is(err, errTimeout) {
			return
		}
		t.err = err
	}
}

// listen takes the next message of the client and returns it if it is an answer.
func (t *talk) listen(within time.Duration) (*message, error) {
	m, err := t.in.next(within, anyMessage)
	switch {
	case err != nil:
		return nil, err
	case m.reply():
		return m, nil
	case m.Method == "session/cancel":
		t.cancelled = true
	case len(m.ID) > 0 && m.Method == "session/prompt":
		return nil, t.refuse(m.ID, -32600, "a prompt is being answered")
	case len(m.ID) > 0:
		return nil, t.answer(m)
	}
	return nil, nil
}

// request asks the client and returns the option it chose, if any. A client that
// cancels answers too.
func (t *talk) request(method string, members ...string) (option string) {
	if t.over() {
		return ""
	}
	id := fmt.Sprintf(`"ask-%d"`, t.sent)
	members = append(members, `"sessionId":`+quote(t.session))
	t.err = t.post(`"id":`+id, `"method":`+quote(method), `"params":`+t.object(members))
	for t.err == nil {
		var m *message
		if m, t.err = t.listen(0); m == nil || string(m.ID) != id {
			continue
		}
		var answer struct {
			Result struct{ Outcome struct{ OptionID string } }
		}
		_ = json.Unmarshal(m.raw, &answer) // an error answer chose nothing
		return answer.Result.Outcome.OptionID
	}
	return ""
}

// surprise sends what a client has to live with.
func (t *talk) surprise() {
	if !t.surprises || t.over() {
		return
	}
	t.err = t.post(`"method":"_fake.example/mood"`, `"params":{"mood":"cheerful"}`)
	t.tell(`"sessionUpdate":"fake_mood_update"`, `"mood":"cheerful"`)
	t.tell(`"sessionUpdate":"usage_update"`, `"used":1200`, `"size":200000`)
}

// Below are the messages of the friendly runtime. A message is a list of members,
// each `"key":value`, so that they can be turned around.

func quote(s string) string {
	b, _ := json.Marshal(s) // a string always encodes
	return string(b)
}

func chunk(kind, text string) []string {
	return []string{`"sessionUpdate":` + quote(kind), `"content":{"type":"text","text":` + quote(text) + `}`}
}

// object joins members. With surprises one is added, and they begin with another
// each time.
func (f *friendly) object(members []string) string {
	if f.surprises {
		members = append(members, fmt.Sprintf(`"_meta":{"fake.example/n":%d}`, f.sent))
		at := f.sent % len(members)
		members = append(members[at:len(members):len(members)], members[:at]...)
	}
	return "{" + strings.Join(members, ",") + "}"
}

func (f *friendly) post(members ...string) error {
	f.sent++
	return f.write([]byte(f.object(append([]string{`"jsonrpc":"2.0"`}, members...)) + "\n"))
}

func (f *friendly) update(session string, members ...string) error {
	params := []string{`"sessionId":` + quote(session), `"update":` + f.object(members)}
	return f.post(`"method":"session/update"`, `"params":`+f.object(params))
}

func (f *friendly) result(id []byte, value string) error {
	return f.post(`"id":`+string(id), `"result":`+value)
}

func (f *friendly) refuse(id []byte, code int, text string) error {
	return f.post(`"id":`+string(id), fmt.Sprintf(`"error":{"code":%d,"message":%s}`, code, quote(text)))
}
