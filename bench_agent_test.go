//go:build linux

package acp_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"strconv"
	"strings"
)

// benchAgent answers every request at once. To a prompt "n=K" it says K updates
// first, rendered once and written in large blocks, so that it never is what
// limits a client; to any other prompt what its first argument names.
func benchAgent(says string, in io.Reader, out io.Writer) {
	cycle := benchLines(says)
	block := bytes.Repeat(bytes.Join(cycle, nil), 1+1<<20/len(bytes.Join(cycle, nil)))
	perBlock := bytes.Count(block, []byte("\n"))
	put := func(p []byte) {
		if _, err := out.Write(p); err != nil {
			os.Exit(0)
		}
	}
	updates := func(n int) {
		for ; n >= perBlock; n -= perBlock {
			put(block)
		}
		size := 0
		for i := range n {
			size += len(cycle[i%len(cycle)])
		}
		put(block[:size])
	}
	r := bufio.NewReader(in)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct{ Prompt []struct{ Text string } }
		}
		if json.Unmarshal(line, &m) != nil || m.ID == nil {
			continue
		}
		answer := `{"protocolVersion":1,"agentInfo":{"name":"bench","version":"1"}}`
		switch m.Method {
		case "session/new":
			answer = `{"sessionId":"` + benchSID + `"}`
		case "session/prompt":
			answer = `{"stopReason":"end_turn"}`
			if n, ok := strings.CutPrefix(m.Params.Prompt[0].Text, "n="); ok {
				k, _ := strconv.Atoi(n)
				updates(k)
			} else {
				misbehave(says, block, put)
			}
		}
		put([]byte(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + answer + "}\n"))
	}
}

// misbehave says 512 MiB of updates, or a line of 64 MiB, or one without an end.
func misbehave(says string, block []byte, put func([]byte)) {
	long := bytes.Repeat([]byte("x"), 1<<20)
	switch says {
	case "flood":
		for range 512 << 20 / len(block) {
			put(block)
		}
	case "bigline":
		for range 64 {
			put(long)
		}
		put([]byte("\n"))
	case "endless":
		for range 512 {
			put(long)
		}
		select {} // it was not the end of the line
	}
}

// benchLines is the cycle of updates that a runtime repeats.
func benchLines(says string) [][]byte {
	update := func(u string) []byte {
		return []byte(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"` + benchSID + `","update":` + u + "}}\n")
	}
	size := 40
	if s, ok := strings.CutPrefix(says, "text:"); ok {
		size, _ = strconv.Atoi(s)
	} else if says == "flood" {
		size = 2048
	}
	const prose = `The quick brown fox edits main.go, then runs \"go test\" \u00e9 and\n`
	text := strings.Repeat(prose, size/64) + strings.Repeat("x", size%64)
	chunk := update(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"` + text + `"}}`)
	switch says {
	case "unknown":
		return [][]byte{update(`{"sessionUpdate":"telemetry","samples":[1,2,3]}`)}
	case "mixed": // ten chunks in sixteen, and three that make no event
	default:
		return [][]byte{chunk}
	}
	call := update(`{"sessionUpdate":"tool_call","toolCallId":"call_001","title":"Reading configuration file","kind":"read","status":"pending","content":[],"locations":[{"path":"/home/user/main.go","line":42}],"rawInput":{"path":"/home/user/main.go","limit":200}}`)
	done := update(`{"sessionUpdate":"tool_call_update","toolCallId":"call_001","status":"completed","content":[{"type":"content","content":{"type":"text","text":"` + strings.Repeat("output ", 30) + `"}}],"rawOutput":{"exit":0,"lines":12}}`)
	plan := update(`{"sessionUpdate":"plan","entries":[{"content":"Read the code","priority":"high","status":"completed"},{"content":"Run tests","priority":"low","status":"pending"}]}`)
	usage := update(`{"sessionUpdate":"usage_update","used":53000,"size":200000,"cost":{"amount":0.045,"currency":"USD"}}`)
	thought := update(`{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"` + text + `"}}`)
	return [][]byte{
		chunk, chunk, chunk, call, chunk, chunk, done, chunk, chunk, done, chunk, chunk, plan, chunk, usage, thought,
	}
}
