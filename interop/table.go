package interop

// Runtimes is the table of the real runtimes.
func Runtimes() []Runtime {
	return []Runtime{
		geminiCLI(Runtime{Name: "gemini", CI: true}, "--model", "gemini-2.5-flash"),
		geminiCLI(Runtime{Name: "gemini-059"}, "--model", "gemini-2.5-flash"),
		// It asks a router first, which costs tokens too.
		geminiCLI(Runtime{Name: "gemini-auto", Pin: "gemini", CI: true, Only: []string{"usage"}}),
		geminiCLI(Runtime{Name: "gemini-059-auto", Pin: "gemini-059", Only: []string{"usage"}}),
		openCode(Runtime{Name: "opencode", CI: true, Facts: Facts{Agent: "OpenCode"}}, "OPENCODE", "opencode"),
		claudeAgent(Runtime{Name: "claude", CI: true, Facts: Facts{Agent: "@agentclientprotocol/claude-agent-acp"}}),
		codexAgent(Runtime{Name: "codex", CI: true, Facts: Facts{Agent: "@agentclientprotocol/codex-acp"}}),
		qwenCode(Runtime{Name: "qwen", CI: true}),
		sdkExample(),
		openCode(Runtime{Name: "kilo", Facts: Facts{Agent: "Kilo"}}, "KILO", "kilo"),
		copilotCLI(),
		cline(),
		droid(),
		pi(),
		claudeAgent(Runtime{Name: "claude-latest", Facts: Facts{Agent: "@agentclientprotocol/claude-agent-acp"}}),
		claudeAgent(Runtime{Name: "claude-zed", Facts: Facts{Agent: "@zed-industries/claude-agent-acp", Hasty: true, EscapesBusy: []string{stubborn}}}),
		codexZed(),
		qwenCode(Runtime{Name: "qwen-latest"}),
	}
}

func geminiCLI(r Runtime, args ...string) Runtime {
	r.Argv = append(bin("gemini", "--acp"), args...)
	r.Env = []string{"GEMINI_API_KEY=fake", "GOOGLE_GEMINI_BASE_URL={url}", "GEMINI_CLI_HOME={home}"}
	// Without it the start of a further process deletes the session that a load left behind.
	r.Files = map[string]string{".gemini/settings.json": `{"general":{"sessionRetention":{"enabled":false},"disableAutoUpdate":true},"privacy":{"usageStatisticsEnabled":false}}`}
	r.Free = Posture{Args: []string{"--approval-mode", "yolo"}, Env: []string{"GEMINI_CLI_TRUST_WORKSPACE=true"}}
	r.MCP, r.Trust = r.Name == "gemini", []string{"GEMINI_CLI_TRUST_WORKSPACE=true"}
	r.Facts = Facts{Agent: "gemini-cli", Refused: completed, Broken: failed("response_error", "400"), Exact: true}
	return r
}

func openCode(r Runtime, prefix, command string) Runtime {
	config := func(permission string) []string {
		return []string{prefix + `_CONFIG_CONTENT={"model":"fake/fake-model","small_model":"fake/fake-model","autoupdate":false,"share":"disabled",` +
			`"permission":{"bash":"` + permission + `","edit":"` + permission + `","*":"` + permission + `"},` +
			`"provider":{"fake":{"npm":"@ai-sdk/openai-compatible","name":"Fake","options":{"baseURL":"{url}/v1","apiKey":"fake"},` +
			`"models":{"fake-model":{"name":"Fake","limit":{"context":900000,"output":8000}}}}}}`}
	}
	r.Argv = bin(command, "acp")
	r.Env = []string{prefix + "_DISABLE_AUTOUPDATE=1", prefix + "_DISABLE_MODELS_FETCH=1"}
	r.Asks = Posture{Env: config("ask")}
	r.Free = Posture{Env: config("allow")}
	r.MCP = r.Name == "opencode"
	r.Facts.Refused, r.Facts.Resigned = completed, true
	r.Facts.Broken = failed("response_error", "pretend error 400")
	r.Facts.Close = true
	r.Facts.MayEscapeBusy = []string{stubborn}
	return r
}

// stubborn is a piece of the command of the row busy, which only a kill ends.
// A runtime that runs commands in a session of their own leaves it behind.
const stubborn = "setTimeout(Date"

func claudeAgent(r Runtime) Runtime {
	r.Argv = bin("claude-agent-acp")
	r.Env = []string{"ANTHROPIC_BASE_URL={url}", "ANTHROPIC_API_KEY=fake", "CLAUDE_CONFIG_DIR={home}/.claude", "IS_SANDBOX=1",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1"}
	r.Asks = Posture{Files: map[string]string{".claude/settings.json": `{"permissions":{"defaultMode":"default"}}`}}
	r.Free = Posture{Files: map[string]string{".claude/settings.json": `{"permissions":{"defaultMode":"default","allow":["Bash","Write"]}}`}}
	r.Facts.Refused = completed
	r.Facts.Broken = failed("response_error", "400")
	r.Facts.Close = true
	if r.Facts.EscapesBusy == nil {
		r.Facts.MayEscapeBusy = []string{stubborn}
	}
	return r
}

const codexConfig = `model = "gpt-5.5"
model_provider = "fake"
check_for_update_on_startup = false
`

const codexProvider = `
[model_providers.fake]
name = "fake"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "FAKE_KEY"
`

func codexAgent(r Runtime) Runtime {
	r.Argv = bin("codex-acp")
	r.Env = []string{"CODEX_HOME={home}/.codex", "FAKE_KEY=fake"}
	r.Files = map[string]string{".codex/config.toml": codexConfig + codexProvider}
	r.Asks = Posture{Env: []string{"INITIAL_AGENT_MODE=read-only"}}
	r.Free = Posture{Env: []string{"INITIAL_AGENT_MODE=agent-full-access"}}
	r.Facts.Refused = failed("turn_failed", "without a cancellation on either side")
	r.Facts.Resigned = true
	r.Facts.Broken = completed
	r.Facts.Close = true
	return r
}

func codexZed() Runtime {
	r := codexAgent(Runtime{Name: "codex-zed", Facts: Facts{Agent: "codex-acp"}})
	r.Asks = Posture{Files: map[string]string{".codex/config.toml": codexConfig + `approval_policy = "on-request"` + codexProvider}}
	r.Free = Posture{Files: map[string]string{".codex/config.toml": codexConfig + `approval_policy = "never"` + "\n" + `sandbox_mode = "danger-full-access"` + codexProvider}}
	r.Facts.Broken = failed("response_error", "")
	return r
}

func qwenCode(r Runtime) Runtime {
	r.Argv = bin("qwen", "--acp")
	r.Env = []string{"OPENAI_API_KEY=fake", "OPENAI_BASE_URL={url}/v1", "OPENAI_MODEL=fake-model",
		"HTTPS_PROXY=", "https_proxy="} // it would take the model there too
	r.Files = map[string]string{".qwen/settings.json": `{"security":{"auth":{"selectedType":"openai"}},"privacy":{"usageStatisticsEnabled":false},"general":{"disableAutoUpdate":true}}`}
	r.Asks = Posture{Args: []string{"--approval-mode", "default"}}
	r.Free = Posture{Args: []string{"--approval-mode", "yolo"}}
	r.Facts = Facts{Agent: "qwen-code", Refused: completed, Broken: failed("response_error", "400")}
	if r.Name == "qwen-latest" {
		r.Facts.Resigned = true
		r.Facts.LongLine = 500_000
	}
	return r
}

func sdkExample() Runtime {
	return Runtime{Name: "sdk", CI: true,
		Argv: []string{"node", "{dir}/node_modules/@agentclientprotocol/sdk/dist/examples/agent.js"},
		Facts: Facts{Version: "none", NoModel: true, Refused: completed, Tool: "read",
			Says: "I'll help you with that. Let me start by reading some files to understand the current situation." +
				" Now I understand the project structure. I need to make some changes to improve it." +
				" I understand you prefer not to make that change. I'll skip the configuration update.",
			Not: map[string]string{
				"error":  "it asks no model",
				"busy":   "it runs no command",
				"long":   "its texts are fixed",
				"resume": "not advertised",
			}}}
}

func copilotCLI() Runtime {
	return Runtime{Name: "copilot", Argv: bin("copilot", "--acp"),
		Env: []string{"COPILOT_PROVIDER_BASE_URL={url}/v1", "COPILOT_PROVIDER_API_KEY=fake", "COPILOT_MODEL=fake-model",
			"COPILOT_OFFLINE=true", "COPILOT_HOME={home}/.copilot", "COPILOT_AUTO_UPDATE=false"},
		Free:  Posture{Args: []string{"--allow-all-tools"}},
		Facts: Facts{Agent: "Copilot", Close: true, Refused: completed, Resigned: true, Broken: completed}}
}

func cline() Runtime {
	return Runtime{Name: "cline", Argv: bin("cline", "--acp"),
		Env:   []string{"CLINE_TELEMETRY_DISABLED=1", "CLINE_API_KEY=fake", "CLINE_PROVIDER=openai-compatible", "CLINE_MODEL=fake-model"},
		Setup: bin("cline", "auth", "-p", "openai-compatible", "-k", "fake", "-m", "fake-model", "-b", "{url}/v1"),
		Asks:  Posture{Args: []string{"--auto-approve", "false"}},
		Free:  Posture{Args: []string{"--auto-approve", "true"}},
		Facts: Facts{Agent: "cline", Refused: completed, Broken: failed("response_error", "400"), Escapes: []string{"--cline-hub-daemon"}, EscapesBusy: []string{"--cline-hub-daemon"}}}
}

func droid() Runtime {
	const asks = "it asks before every command, whatever it is told at its start"
	return Runtime{Name: "droid", Argv: bin("droid", "exec", "--output-format", "acp"),
		Env: []string{"FACTORY_API_KEY=fk-fake", "FACTORY_API_BASE_URL={url}"},
		Facts: Facts{Agent: "@factory/cli", Buffers: true, Refused: completed, Resigned: true, Broken: failed("response_error", ""),
			Not: map[string]string{"tool": asks, "busy": asks, "long": "a piece of 300,000 characters fails its turn"}}}
}

func pi() Runtime {
	return Runtime{Name: "pi", Argv: bin("pi-acp"),
		Env: []string{"PI_OFFLINE=1", "PI_SKIP_VERSION_CHECK=1"},
		Files: map[string]string{
			".pi/agent/models.json":   `{"providers":{"fake":{"baseUrl":"{url}/v1","api":"openai-completions","apiKey":"fake","models":[{"id":"fake-model","name":"Fake","reasoning":false,"input":["text"],"contextWindow":900000,"maxTokens":8000,"cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0}}]}}}`,
			".pi/agent/settings.json": `{"defaultProvider":"fake","defaultModel":"fake-model"}`,
		},
		Facts: Facts{Agent: "pi-acp", Banner: true, Broken: completed, Not: map[string]string{"refuse": "it never asks"}}}
}
