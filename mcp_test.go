package acp

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func writeMCP(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mcp.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestMCPRender goes from the file to the wire, byte for byte.
func TestMCPRender(t *testing.T) {
	const every = `{"mcpServers":{
		"z":{"command":"/bin/z","args":["-a","b c"],"env":{"B":"2","A":"1"}},
		"h":{"type":"http","url":"http://127.0.0.1/mcp","headers":{"Y":"2","X":"1"}},
		"e":{"type":"sse","url":"http://127.0.0.1/sse"}}}`
	const (
		z = `{"name":"z","command":"/bin/z","args":["-a","b c"],"env":[{"name":"A","value":"1"},{"name":"B","value":"2"}]}`
		h = `{"type":"http","name":"h","url":"http://127.0.0.1/mcp","headers":[{"name":"X","value":"1"},{"name":"Y","value":"2"}]}`
		e = `{"type":"sse","name":"e","url":"http://127.0.0.1/sse","headers":[]}`
		s = `{"name":"s","command":"c","args":[],"env":[]}`
	)
	for _, tc := range []struct {
		name, file string
		http, sse  bool
		wire       string
		withheld   []string
	}{
		{"all", every, true, true, `[` + e + `,` + h + `,` + z + `]`, nil},
		{"no sse", every, true, false, `[` + h + `,` + z + `]`, []string{"e"}},
		{"no http", every, false, true, `[` + e + `,` + z + `]`, []string{"h"}},
		{"stdio alone", every, false, false, `[` + z + `]`, []string{"e", "h"}},
		{"no mcpServers", `{"other":1}`, true, true, `[]`, nil},
		{"mcpServers null", `{"mcpServers":null}`, true, true, `[]`, nil},
		{"no servers", `{"mcpServers":{}}`, true, true, `[]`, nil},
		{"defaults", `{"mcpServers":{"s":{"command":"c"}}}`, true, true, `[` + s + `]`, nil},
		{"type stdio", `{"mcpServers":{"s":{"type":"stdio","command":"c"}}}`, false, false, `[` + s + `]`, nil},
		{"url alone is http", `{"mcpServers":{"h":{"url":"u"}}}`, true, false, `[{"type":"http","name":"h","url":"u","headers":[]}]`, nil},
		{"null fields are absent", `{"mcpServers":{"s":{"type":null,"command":"c","url":null,"args":null,"env":null,"enabled":null}}}`, false, false, `[` + s + `]`, nil},
		{"disabled", `{"mcpServers":{"a":{"command":"a","enabled":false},"s":{"command":"c","enabled":true}}}`, false, false, `[` + s + `]`, nil},
		{"a disabled one is not withheld", `{"mcpServers":{"a":{"url":"u","enabled":false}}}`, false, false, `[]`, nil},
		{"a disabled one may be unfinished", `{"mcpServers":{"a":{"enabled":false}}}`, false, false, `[]`, nil},
		{"keys are exact", `{"mcpservers":{"a":{}},"mcpServers":{"s":{"command":"c","Command":"d","URL":"u","Enabled":false}}}`, false, false, `[` + s + `]`, nil},
		{"the last of two", `{"mcpServers":{"s":{"command":"b","args":["x"]},"s":{"command":"c"}}}`, false, false, `[` + s + `]`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			servers, e := parseMCP(writeMCP(t, tc.file))
			if e != nil {
				t.Fatal(e)
			}
			wire, withheld := renderMCP(servers, tc.http, tc.sse)
			if got := strings.TrimSpace(string(encode(wire))); got != tc.wire {
				t.Errorf("wire\n%s\nwant\n%s", got, tc.wire)
			}
			if !slices.Equal(withheld, tc.withheld) {
				t.Errorf("withheld %q, want %q", withheld, tc.withheld)
			}
		})
	}
}

func TestMCPUnknownKeys(t *testing.T) {
	servers, e := parseMCP(writeMCP(t, `{"mcpServers":{"s":{"command":"c","zeta":1,"Args":[],"type":"stdio"}}}`))
	if e != nil {
		t.Fatal(e)
	}
	if got, want := servers[0].unknown, []string{"Args", "zeta"}; !slices.Equal(got, want) {
		t.Errorf("unknown %q, want %q", got, want)
	}
}

const mcpSecret = "s3cr3t-value"

func TestMCPMalformed(t *testing.T) {
	t.Parallel()
	server := func(s string) string { return `{"mcpServers":{"srv":` + s + `}}` }
	for _, tc := range []struct{ name, file, want string }{
		{"empty", ``, "is not valid JSON"},
		{"not JSON", `TOKEN=` + mcpSecret, "is not valid JSON"},
		{"cut short", `{"mcpServers":{"s":{"env":{"A":"` + mcpSecret, "is not valid JSON"},
		{"more behind it", `{} ` + mcpSecret, "is not valid JSON"},
		{"list", `["` + mcpSecret + `"]`, "is not an object"},
		{"null", `null`, "is not an object"},
		{"servers a list", `{"mcpServers":["` + mcpSecret + `"]}`, "mcpServers is not an object"},
		{"server a string", server(`"` + mcpSecret + `"`), `server "srv": not an object`},
		{"server null", server(`null`), "not an object"},
		{"neither", server(`{"env":{"A":"` + mcpSecret + `"}}`), "neither command nor url"},
		{"both", server(`{"command":"c","url":"u","env":{"A":"` + mcpSecret + `"}}`), "both command and url"},
		{"empty command", server(`{"command":""}`), "neither command nor url"},
		{"http with a command", server(`{"type":"http","command":"c"}`), "its type"},
		{"sse with a command", server(`{"type":"sse","command":"c"}`), "its type"},
		{"stdio with a url", server(`{"type":"stdio","url":"u"}`), "its type"},
		{"unknown type", server(`{"type":"` + mcpSecret + `","url":"u"}`), "its type"},
		{"type a number", server(`{"type":1,"url":"u"}`), "type is not a string"},
		{"command a list", server(`{"command":["` + mcpSecret + `"]}`), "command is not a string"},
		{"url a number", server(`{"url":1}`), "url is not a string"},
		{"args a string", server(`{"command":"c","args":"` + mcpSecret + `"}`), "args is not a list of strings"},
		{"args of numbers", server(`{"command":"c","args":[1]}`), "args is not a list of strings"},
		{"args with null", server(`{"command":"c","args":[null]}`), "args is not a list of strings"},
		{"env a list", server(`{"command":"c","env":["A=` + mcpSecret + `"]}`), "env is not an object of strings"},
		{"env of numbers", server(`{"command":"c","env":{"A":123456789}}`), "env is not an object of strings"},
		{"env with null", server(`{"command":"c","env":{"A":null}}`), "env is not an object of strings"},
		{"headers a string", server(`{"url":"u","headers":"` + mcpSecret + `"}`), "headers is not an object of strings"},
		{"headers with null", server(`{"url":"u","headers":{"A":null}}`), "headers is not an object of strings"},
		{"enabled a string", server(`{"command":"c","enabled":"` + mcpSecret + `"}`), "enabled is not a boolean"},
		{"too large", `{"x":"` + strings.Repeat("x", maxMCPFile) + `"}`, "has more than 10485760 bytes"},
		{"too deep", strings.Repeat("[", 20000) + strings.Repeat("]", 20000), "is not valid JSON"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			servers, e := parseMCP(writeMCP(t, tc.file))
			if e == nil {
				t.Fatalf("no error, %d servers", len(servers))
			}
			if e.Kind != ErrResponseError || !strings.Contains(e.Error(), tc.want) {
				t.Errorf("%v, want %q", e, tc.want)
			}
			for _, secret := range []string{mcpSecret, "123456789"} {
				if strings.Contains(e.Error(), secret) {
					t.Errorf("the error holds a value of the file: %v", e)
				}
			}
		})
	}
}

func TestMCPUnreadable(t *testing.T) {
	for path, want := range map[string]string{
		filepath.Join(t.TempDir(), "none"): "cannot be read",
		t.TempDir():                        "is not a regular file", // as a pipe is none
	} {
		if _, e := parseMCP(path); e == nil || e.Kind != ErrResponseError || !strings.Contains(e.Error(), want) {
			t.Errorf("%s: %v, want a response_error with %q", path, e, want)
		}
	}
}

func TestMCPSecrets(t *testing.T) {
	servers, e := parseMCP(writeMCP(t, `{"mcpServers":{
		"a":{"command":"not-secret","args":["not-secret"],"env":{"A":"s<\"cret","B":"1","C":"a-longer-secret","D":" {\n\t\"key\": 1\n}/\n"}},
		"b":{"url":"http://not-secret","headers":{"Authorization":"Bearer <x>","D":"a-longer-secret"}},
		"c":{"command":"c","enabled":false,"env":{"E":"never-sent"}}}}`))
	if e != nil {
		t.Fatal(e)
	}
	want := []string{
		` {\n\t\"key\": 1\n}\/\n`, ` {\n\t\"key\": 1\n}/\n`, `Bearer \u003cx\u003e`,
		" {\n\t\"key\": 1\n}\\/\n", " {\n\t\"key\": 1\n}/\n", "a-longer-secret",
		`{  "key": 1 }\/`, `{  "key": 1 }/`, `s\u003c\"cret`, `\t\"key\": 1`, "Bearer <x>",
		"\t\"key\": 1", `"key": 1`, `s<\"cret`, `s<"cret`,
	}
	if got := secretTexts(servers, nil); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

const (
	generatedMCP = `{"mcpServers":{"sortie-tools":{"command":"sortie","env":{"K":"` + mcpSecret + `"}},"both":{"command":"generated"}},"mine":1,"shared":"generated"}`
	operatorMCP  = `{"mcpServers":{"op":{"command":"o","extra":{"n":12345678901234567890,"s":"<&>"}},"both":{"command":"operator"}},"theirs":[2],"shared":"operator"}`
	mergedMCP    = `{"mcpServers":{"sortie-tools":{"command":"sortie","env":{"K":"` + mcpSecret + `"}},"op":{"command":"o","extra":{"n":12345678901234567890,"s":"<&>"}},"both":{"command":"operator"}},"mine":1,"theirs":[2],"shared":"generated"}`
)

// mergeDir lays out a workflow's directory and returns it with the path of the
// generated file.
func mergeDir(t *testing.T, operator, generated string) (dir, path string) {
	t.Helper()
	dir = t.TempDir()
	path = filepath.Join(dir, "gen", "mcp.json")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	for p, text := range map[string]string{filepath.Join(dir, "op.json"): operator, path: generated} {
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, path
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// sameJSON compares with numbers kept as they are written.
func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var v [2]any
	for i, text := range []string{a, b} {
		dec := json.NewDecoder(strings.NewReader(text))
		dec.UseNumber()
		if err := dec.Decode(&v[i]); err != nil {
			t.Fatal(err)
		}
	}
	return reflect.DeepEqual(v[0], v[1])
}

func TestMergeMCPConfig(t *testing.T) {
	dir, path := mergeDir(t, operatorMCP, generatedMCP)
	if err := os.Chmod(path, 0o644); err != nil { // #nosec G302 -- the merge must tighten it
		t.Fatal(err)
	}
	for _, operator := range []string{"op.json", filepath.Join(dir, "op.json")} { // a second merge changes nothing
		if err := MergeMCPConfig(operator, dir, path); err != nil {
			t.Fatal(err)
		}
		got := readFile(t, path)
		if !sameJSON(t, got, mergedMCP) {
			t.Errorf("merged\n%s\nwant\n%s", got, mergedMCP)
		}
		if !strings.Contains(got, "<&>") {
			t.Error("a value was spelt another way")
		}
	}
	if readFile(t, filepath.Join(dir, "op.json")) != operatorMCP {
		t.Error("the operator's file was written")
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode().Perm())
	}
	wantAlone(t, path)
	servers, e := parseMCP(path)
	if e != nil || len(servers) != 3 {
		t.Errorf("%d servers, %v", len(servers), e)
	}
}

// wantAlone checks that no temporary file stayed behind.
func wantAlone(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("%d entries beside the generated file, %v", len(entries)-1, err)
	}
}

func TestMergeMCPConfigFails(t *testing.T) {
	for _, tc := range []struct{ name, file, operator, generated, want string }{
		{"missing", "none.json", operatorMCP, generatedMCP, "cannot be read"},
		{"a directory", "gen", operatorMCP, generatedMCP, "cannot be read"},
		{"not JSON", "op.json", `{"mcpServers":{"x":{"env":{"A":"` + mcpSecret + `"`, generatedMCP, "is not valid JSON"},
		{"not an object", "op.json", `[]`, generatedMCP, "is not an object"},
		{"servers not an object", "op.json", `{"mcpServers":[]}`, generatedMCP, "mcpServers is not an object"},
		{"sortie-tools", "op.json", `{"mcpServers":{"sortie-tools":{"command":"x","env":{"A":"` + mcpSecret + `"}}}}`, generatedMCP, "sortie-tools"},
		{"sortie-tools, disabled", "op.json", `{"mcpServers":{"sortie-tools":{"enabled":false}}}`, generatedMCP, "sortie-tools"},
		{"sortie-tools, escaped", "op.json", `{"mcpServers":{"sortie\u002dtools":{}}}`, generatedMCP, "sortie-tools"},
		{"generated not JSON", "op.json", operatorMCP, `{"K":"` + mcpSecret, "is not valid JSON"},
		{"generated not an object", "op.json", operatorMCP, `7`, "is not an object"},
		{"one file", filepath.Join("gen", "mcp.json"), operatorMCP, `{}`, "the generated one itself"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, path := mergeDir(t, tc.operator, tc.generated)
			err := MergeMCPConfig(tc.file, dir, path)
			var e *Error
			if !errors.As(err, &e) || e.Kind != ErrResponseError || !strings.Contains(e.Error(), tc.want) {
				t.Errorf("%v, want a response_error with %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), mcpSecret) {
				t.Errorf("the error holds a value of the file: %v", err)
			}
			if readFile(t, path) != tc.generated {
				t.Error("the generated file was written")
			}
			wantAlone(t, path)
		})
	}
	t.Run("null is none", func(t *testing.T) {
		dir, path := mergeDir(t, `{"mcpServers":{"a":{"command":"a"}}}`, `{"mcpServers":null}`)
		if err := MergeMCPConfig("op.json", dir, path); err != nil || !strings.Contains(readFile(t, path), `"command":"a"`) {
			t.Error(err)
		}
	})
	t.Run("no operator's file", func(t *testing.T) {
		if err := MergeMCPConfig("", t.TempDir(), filepath.Join(t.TempDir(), "none")); err != nil {
			t.Error(err)
		}
	})
	t.Run("nowhere to write", func(t *testing.T) {
		dir, path := mergeDir(t, operatorMCP, generatedMCP)
		err := replaceFile(filepath.Join(path, "below"), nil)
		if err == nil {
			t.Error("no error")
		}
		if err := replaceFile(filepath.Dir(path), nil); err == nil {
			t.Error("a directory was replaced")
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
			t.Errorf("%d entries, %v", len(entries), err)
		}
	})
}

// TestMergeMCPConfigLinks has other names of other files at the generated
// path: they must not be written through.
func TestMergeMCPConfigLinks(t *testing.T) {
	for name, link := range map[string]func(oldname, newname string) error{"symbolic": os.Symlink, "hard": os.Link} {
		t.Run(name, func(t *testing.T) {
			dir, path := mergeDir(t, operatorMCP, generatedMCP)
			target := filepath.Join(dir, "target.json")
			if err := os.Rename(path, target); err != nil {
				t.Fatal(err)
			}
			if err := link(target, path); err != nil {
				t.Skip("no links here: ", err)
			}
			if err := MergeMCPConfig("op.json", dir, path); err != nil {
				t.Fatal(err)
			}
			if readFile(t, target) != generatedMCP {
				t.Error("written through the link")
			}
			info, err := os.Lstat(path)
			if err != nil || !info.Mode().IsRegular() {
				t.Errorf("the generated path is no regular file: %v, %v", info, err)
			}
			if !sameJSON(t, readFile(t, path), mergedMCP) {
				t.Error("not merged")
			}
		})
	}
}

// FuzzMCP parses anything: whatever is taken renders as JSON, the same twice,
// and what is refused names no value.
func FuzzMCP(f *testing.F) {
	for _, s := range []string{generatedMCP, operatorMCP, `{"mcpServers":{"":{"url":"\ud800"}}}`, `{"mcpServers":{"a":{"type":"sse","url":"u","headers":{"A":"` + mcpSecret + `"}}}}`} {
		f.Add([]byte(s))
	}
	path := filepath.Join(f.TempDir(), "mcp.json")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		servers, e := parseMCP(path)
		if e != nil {
			return
		}
		wire, withheld := renderMCP(servers, true, true)
		first := encode(wire)
		if withheld != nil || len(wire) != len(servers) || !json.Valid(first) {
			t.Errorf("%d of %d servers, withheld %q: %s", len(wire), len(servers), withheld, first)
		}
		again, e := parseMCP(path)
		if e != nil {
			t.Fatal(e)
		}
		wire, _ = renderMCP(again, true, true)
		if second := encode(wire); !bytes.Equal(first, second) {
			t.Errorf("%s, then %s", first, second)
		}
	})
}
