-- Where a call goes on when the bot is done: by what it left. Copy to scripts/.

local function decoded(text)
  return (tostring(text or ""):gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end))
end

local result = decoded(session:getVariable("talkspurt_handoff"))
local reason = tostring(session:getVariable("talkspurt_reason"))
freeswitch.consoleLog("info", "the bot is done: " .. reason .. "\n")

if result:find('"queue"%s*:%s*"billing"') then
  session:transfer("7201", "XML", "default")
elseif result ~= "" or reason == "dialogue_failed" or reason == "drained" or reason == "unreachable" then  -- without a bot a person
  session:transfer("7200", "XML", "default")
else
  session:hangup("NORMAL_CLEARING")
end
