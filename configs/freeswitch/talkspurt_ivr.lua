-- An IVR that asks for an account number and hands the caller over to the bot, which gets the number as a custom
-- parameter. Copy to scripts/. The gateway's token: global variable talkspurt_token (vars.xml).

local api = freeswitch.API()

local function encoded(text)
  return (tostring(text or ""):gsub("[^%w%-_.~]", function(c) return string.format("%%%02X", string.byte(c)) end))
end

session:answer()
-- 4 to 10 digits, 3 tries, 5 s each, # ends. The files are FreeSWITCH's own (freeswitch-sounds-en-us-callie); where one is
-- missing, all three tries are over at once.
local ask = "file_string://ivr/ivr-please_enter_the.wav!ivr/ivr-account_number.wav"
local account = session:playAndGetDigits(4, 10, 3, 5000, "#", ask, "", "\\d+")
if not session:ready() then return end

local uuid = session:get_uuid()
local url = "ws://127.0.0.1:8080/media/freeswitch/default?uuid=" .. uuid .. "&rate=8000"
url = url .. "&talkspurt.From=" .. encoded(session:getVariable("caller_id_number"))
url = url .. "&talkspurt.To=" .. encoded(session:getVariable("destination_number"))
url = url .. "&account=" .. encoded(account)

session:setVariable("STREAM_EXTRA_HEADERS",
  '{"Authorization":"Bearer ' .. (api:executeString("global_getvar talkspurt_token") or "") .. '"}')
session:setVariable("STREAM_PLAYBACK", "true")
session:setVariable("STREAM_SAMPLE_RATE", "8000")

local answer = api:executeString("uuid_audio_stream " .. uuid .. " start " .. url .. " mono 8k")
if not answer or answer:sub(1, 3) ~= "+OK" then
  session:execute("playback", "ivr/ivr-call_cannot_be_completed_as_dialed.wav")
  session:hangup("NORMAL_TEMPORARY_FAILURE")
  return
end
session:setVariable("send_silence_when_idle", "-1")  -- park sends nothing by itself
session:setVariable("park_timeout", "1800")  -- seconds, longest call with the bot: talkspurt.xml says why
-- The gateway moves the call to after_bot (talkspurt_after.lua) when the bot is done.
session:execute("park")
